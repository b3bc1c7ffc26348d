"""`hvdtune run --mpi`: what mpirun is told, and how its job ends. Open MPI is the tests' own."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_programs import launched
from support.jobs.launcher import SHOW_ENVIRONMENT, launch, start, wait_until_gone
from support.jobs.ranks import hvdtune_command, run_under, tool

# The tests' own mpirun first, whether or not their environment is active.
PATH = f"{Path(tool('mpirun')).parent}:/usr/bin:/bin"


def fake_mpirun(folder: Path, version: str) -> dict[str, str]:
    """An mpirun that knows its version, and otherwise writes down its words and environment."""
    path = folder / "bin" / "mpirun"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"if sys.argv[1:] == ['--version']: sys.exit(print({version!r}))\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(folder / 'told')!r}, 'w'))\n"
        "print('mpirun was here')\n"
        "sys.exit(7)\n"
    )
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:/usr/bin:/bin"}


def test_a_job_under_open_mpi():
    command = hvdtune_command("run", "-np", "3", "--mpi")
    result = run_under(command, launched.identity, 3, 10, env={"PATH": PATH})
    answers = list(result.values)
    assert sorted(answer["local"] for answer in answers) == [(place, 3) for place in range(3)]
    assert [answer["rank"] for answer in answers] == [0, 1, 2]
    assert all(answer["sums"] == {9.0} for answer in answers)


def test_mpirun_numbers_the_ranks_and_settings_reach_them(tmp_path):
    flags = ["--cycle-time-ms", "7", "--mpi-args=-x ADDED='a b'"]
    script = (
        "names = ('OMPI_COMM_WORLD_SIZE', 'HOROVOD_CYCLE_TIME', 'ADDED', 'EXPORTED', "
        "'NCCL_SOCKET_IFNAME', 'HOROVOD_RANK')\n"
        "print([os.environ.get(name) for name in names], sys.stdin.read() == '')\n"
    )
    ended = launch(
        tmp_path, ["run", "-np", "2", "--mpi", *flags], script,
        env={"PATH": PATH, "EXPORTED": "x y", "HOROVOD_RANK": "5", "HOROVOD_SIZE": "6"},
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    lines = sorted(ended.stdout.splitlines())
    wanted = "['2', '7.0', 'a b', 'x y', 'lo', None] True"
    assert [line.partition("<stdout>: ")[::2] for line in lines] == [
        ("[1,0]", wanted),
        ("[1,1]", wanted),
    ]


def test_the_exit_code_is_mpiruns(tmp_path):
    arguments = ["run", "-np", "2", "--mpi"]
    ended = launch(tmp_path, arguments, "sys.exit(5)\n", env={"PATH": PATH})
    assert ended.status == 5
    ended = launch(tmp_path, [*arguments, "no-such-program"], env={"PATH": PATH})
    assert ended.status not in (0, 2)
    assert "no-such-program" in ended.stdout + ended.stderr


# In a session of its own, so that mpirun does not know of it.
WITH_STRAY = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("pid", os.getpid(), flush=True)
print("pid", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_is_left_when_the_launcher_ends(tmp_path, name):
    with start(tmp_path, ["run", "-np", "2", "--mpi"], WITH_STRAY, {"PATH": PATH}) as launcher:
        pids = [int(pid) for pid in launcher.wait_for_lines("<stdout>: pid ", 4)]
        launcher.send(signal.Signals[name])
        status = launcher.wait().status
    number = signal.Signals[name]
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    wait_until_gone(pids)


def test_another_mpi_is_given_its_own_words(tmp_path):
    environment = fake_mpirun(tmp_path, "HYDRA build details:")
    environment["HVDTUNE_TEST_VARIABLE"] = "1"
    flags = ["-H", "localhost:2,127.0.0.1:2", "--prefix-output-with-timestamp", "--mpi"]
    ended = launch(tmp_path, ["run", "-np", "3", *flags, "true", "a b"], env=environment)
    assert (ended.status, ended.stdout) == (7, "mpirun was here\n")
    assert ended.stderr == (
        "hvdtune run: --prefix-output-with-timestamp has no effect with MPICH.\n"
    )
    words, told = json.loads((tmp_path / "told").read_text())
    expected = "-l -np 3 -ppn 2 -hosts localhost,127.0.0.1 -bind-to none -map-by slot"
    assert words == [*expected.split(), "-genv", "NCCL_SOCKET_IFNAME=lo", "true", "a b"]
    assert told["HVDTUNE_TEST_VARIABLE"] == "1"
    assert len(told["HVDTUNE_SECRET"]) == 64
    assert told["PYTHONUNBUFFERED"] == "1"


def test_a_dry_run_prints_the_command_and_starts_nothing(tmp_path):
    environment = {**fake_mpirun(tmp_path, "mpirun (Open MPI) 4.1.4"), "HVDTUNE_SECRET": "5ecret"}
    flags = ["-H", "far1:2,far2:2", "--mpi", "--dry-run", "--network-interfaces", "lo"]
    ended = launch(tmp_path, ["run", "-np", "4", *flags, "python", "a b.py"], env=environment)
    assert (ended.status, ended.stderr) == (0, "")
    assert ended.stdout.count("\n") == 1
    words = shlex.split(ended.stdout)
    beginning = shlex.split(
        "mpirun --allow-run-as-root --tag-output -np 4 -H far1:2,far2:2 -bind-to none "
        "-map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include lo "
        "-x NCCL_SOCKET_IFNAME=lo"
    )
    assert words[: len(beginning)] == beginning
    assert words[-4:] == ["-x", words[-3], "python", "a b.py"]
    assert "HVDTUNE_SECRET" in words  # the name alone
    assert "5ecret" not in ended.stdout
    assert not (tmp_path / "told").exists()


def test_ranks_on_several_hosts_are_told_where_to_meet(tmp_path):
    environment = fake_mpirun(tmp_path, "mpirun (Open MPI) 4.1.4")
    flags = ["-H", "localhost:1,far.invalid:1", "--mpi"]
    ended = launch(tmp_path, ["run", "-np", "2", *flags, "true"], env=environment)
    assert ended.status == 7, ended.stderr
    words, told = json.loads((tmp_path / "told").read_text())
    for name in ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HVDTUNE_SECRET"):
        assert words[words.index(name) - 1] == "-x"
        assert told[name]
    assert told["HVDTUNE_SECRET"] not in " ".join(words)


def test_no_mpi_is_one_sentence(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2", "--mpi", "true"], env={"PATH": str(tmp_path)})
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr.startswith("hvdtune run: --mpi: no mpirun was found on PATH. ")
    assert ended.stderr.count("\n") == 1


def test_a_dry_run_of_our_own_launcher(tmp_path):
    flags = ["--dry-run", "--cycle-time-ms", "7", "--autotune-log-file", "x"]
    ended = launch(tmp_path, ["run", "-np", "2", *flags, "touch", "a b"])
    assert ended.status == 0
    assert not (tmp_path / "a b").exists()
    lines = [shlex.split(line) for line in ended.stdout.splitlines()]
    for rank, words in enumerate(lines):
        assert words[0] == "env"
        assert words[-2:] == ["touch", "a b"]
        given = dict(word.split("=", 1) for word in words[1:-2])
        assert given["HOROVOD_RANK"] == str(rank)
        assert given["HOROVOD_SIZE"] == "2"
        assert given["HOROVOD_CYCLE_TIME"] == "7.0"
        assert not {"HVDTUNE_SECRET", "HVDTUNE_JOB_ID", "HOROVOD_AUTOTUNE_LOG"} & set(given)
    assert len(lines) == 2


def test_the_lines_of_a_dry_run_can_be_run(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "1", "--dry-run"], SHOW_ENVIRONMENT)
    shown = subprocess.run(["sh", "-c", ended.stdout], capture_output=True, check=True).stdout
    assert json.loads(shown)["HOROVOD_LOCAL_SIZE"] == "1"
