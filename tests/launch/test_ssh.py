"""`hvdtune run -H` with other hosts: real ssh to an sshd of the tests' own, on this machine.

The names of the hosts mean nothing to anybody but ssh, so the launcher has to use it; what it finds
there is this very machine, so the ranks can work together.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rank_programs import launched
from support.hosts import ssh_server
from support.jobs.launcher import (
    SHOW_ENVIRONMENT,
    SLEEP,
    environments,
    launch,
    start,
    wait_until_gone,
)
from support.jobs.ranks import hvdtune_command, run_under

REASON = ssh_server.why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ssh_server.ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def by_ssh(server, tmp_path):
    """The environment in which the launcher finds the server's hosts, and remembers nothing."""
    return {"HVDTUNE_SSH_COMMAND": server.client, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def own_lines(ended):
    return [line for line in ended.stderr.splitlines() if line.startswith("hvdtune run: ")]


def test_a_job_on_two_names_of_a_host(by_ssh):
    command = hvdtune_command("run", "-np", "4", "-H", "localhost:2,nodea:2")
    result = run_under(command, launched.identity, 3, 10, env=by_ssh)
    answers = list(result.values)
    assert [answer["rank"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["local"] for answer in answers] == [(0, 2), (1, 2)] * 2
    assert [answer["cross"] for answer in answers] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert all(answer["sums"] == {12.0} for answer in answers)
    assert all(answer["gathered"] == [0, 1, 2, 3] for answer in answers)


def test_a_job_on_other_hosts_alone(tmp_path, by_ssh):
    ended = launch(tmp_path, ["run", "-np", "3", "-H", "nodea:1,nodeb:2"], SHOW_ENVIRONMENT, by_ssh)
    found = environments(ended)
    assert [worker["HOROVOD_HOSTNAME"] for worker in found] == ["nodea", "nodeb", "nodeb"]
    assert [worker["HOROVOD_LOCAL_RANK"] for worker in found] == ["0", "0", "1"]
    assert len({worker["HVDTUNE_SECRET"] for worker in found}) == 1


def test_the_environment_arrives_whole_and_not_on_a_command_line(tmp_path, by_ssh):
    script = (
        "lines = [open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc')"
        " if pid.isdigit() and os.path.exists(f'/proc/{pid}/cmdline')]\n"
        "secret = os.environ['HVDTUNE_SECRET']\n"
        "print(json.dumps([len(secret), any(secret in line for line in lines), os.getcwd(), "
        "os.environ.get('ODD'), os.environ.get('CUDA_VISIBLE_DEVICES'), "
        "os.environ['HOROVOD_CYCLE_TIME'], sys.stdin.read(), sys.argv[1:]]))\n"
    )
    odd = "two\nlines, 'quotes' \"and\" $HOME \udce4"
    by_ssh.update(ODD=odd, CUDA_VISIBLE_DEVICES="3", LARGE="x" * 100_000)
    (tmp_path / "worker.py").write_text("import json, os, sys\n" + script)
    command = [sys.executable, "worker.py", "a b", "$HOME", "'"]
    flags = ["--cycle-time-ms", "7"]
    ended = launch(tmp_path, ["run", "-np", "1", "-H", "nodea:1", *flags, *command], env=by_ssh)
    assert ended.status == 0, ended.stderr
    told = json.loads(ended.stdout.removeprefix("[0]<stdout>:"))
    assert told == [64, False, str(tmp_path), odd, None, "7.0", "", ["a b", "$HOME", "'"]]


def test_output_is_prefixed_and_kept_apart(tmp_path, by_ssh):
    script = (
        "print('out', rank)\nprint('err', rank, file=sys.stderr)\n"
        "sys.stdout.write('bar 1\\rbar 2\\r')\nprint('no end', end='')\n"
    )
    flags = ["-np", "2", "-H", "nodea:2", "--output-filename", "logs"]
    ended = launch(tmp_path, ["run", *flags], script, by_ssh)
    assert ended.status == 0
    for rank in range(2):
        prefix = f"[{rank}]<stdout>:"
        assert f"{prefix}out {rank}\n" in ended.stdout
        assert f"{prefix}bar 1\r{prefix}bar 2\r" in ended.stdout
        assert f"{prefix}no end" in ended.stdout
        assert f"[{rank}]<stderr>:err {rank}\n" in ended.stderr
        kept = (tmp_path / f"logs/rank.{rank}/stdout").read_bytes().decode()
        assert kept == f"{prefix}out {rank}\n{prefix}bar 1\r{prefix}bar 2\r{prefix}no end"


def test_much_output_arrives_whole(tmp_path, by_ssh):
    script = "for number in range(60000):\n    print(number, 'x' * 50)\n"
    ended = launch(tmp_path, ["run", "-np", "2", "-H", "nodea:2"], script, by_ssh)
    assert ended.status == 0
    lines = ended.stdout.splitlines()
    for rank in range(2):
        prefix = f"[{rank}]<stdout>:"
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert own == [f"{number} {'x' * 50}" for number in range(60000)]


@pytest.mark.parametrize(
    ("way", "status", "words"),
    [
        ("sys.exit(3)", 3, "exited with code 3"),
        ("sys.exit(255)", 255, "exited with code 255"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
    ],
)
def test_the_first_failure_ends_the_job(tmp_path, by_ssh, way, status, words):
    script = "print('pid', os.getpid(), flush=True)\n" + (
        f"if rank == 2:\n    print('last words', flush=True)\n    time.sleep(0.5)\n    {way}\n"
        "time.sleep(600)\n"
    )
    hosts = "localhost:1,nodea:1,nodeb:1"
    ended = launch(tmp_path, ["run", "-np", "3", "-H", hosts], script, by_ssh)
    assert ended.status == status
    pids = {}
    for line in ended.stdout.splitlines():
        if "<stdout>:pid " in line:
            pids[line[1]] = int(line.rpartition(" ")[2])
    assert len(pids) == 3
    assert f"hvdtune run: rank 2 (pid {pids['2']} on nodeb) {words}" in ended.stderr
    assert "    last words\n" in ended.stderr
    wait_until_gone(list(pids.values()))


# Each worker leaves two children: one in a session of its own that ignores SIGTERM, and an orphan.
FAMILY = """
print("pid", os.getpid(), flush=True)
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
orphan = "import subprocess; print('pid', subprocess.Popen(['sleep', '600'], \\
start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
subprocess.run([sys.executable, "-c", orphan], check=True)
print("pid", child.pid, flush=True)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_is_left_when_the_launcher_ends(tmp_path, by_ssh, server, name):
    arguments = ["run", "-np", "2", "-H", "nodea:2"]
    with start(tmp_path, arguments, FAMILY + "time.sleep(600)\n", by_ssh) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 6)]
        assert len(set(pids)) == 6
        launcher.send(signal.Signals[name])
        status = launcher.wait().status
    number = signal.Signals[name]
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    wait_until_gone(pids)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "sys.exit(rank * 7)"])
def test_descendants_do_not_outlive_the_job(tmp_path, by_ssh, ending):
    script = FAMILY + "while not os.path.exists('go'): time.sleep(0.01)\n" + ending + "\n"
    with start(tmp_path, ["run", "-np", "2", "-H", "nodea:2"], script, by_ssh) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 6)]
        (tmp_path / "go").touch()
        assert launcher.wait().status == (0 if ending == "sys.exit(0)" else 7)
    wait_until_gone(pids)


def test_a_worker_may_save_its_state_when_the_launcher_is_interrupted(tmp_path, by_ssh):
    script = (
        "def save(*_):\n    time.sleep(0.3)\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
    )
    with start(tmp_path, ["run", "-np", "2", "-H", "nodea:2"], script + SLEEP, by_ssh) as launcher:
        launcher.wait_for_lines("<stdout>:pid ", 2)
        launcher.send(signal.SIGINT)
        ended = launcher.wait()
    assert ended.status == 130
    assert ended.stdout.count("saved") == 2


def test_user_signals_are_passed_on(tmp_path, by_ssh):
    script = (
        "signal.signal(signal.SIGUSR1, lambda *_: (print('told'), sys.exit(0)))\n"
        "print('ready')\ntime.sleep(600)\n"
    )
    with start(tmp_path, ["run", "-np", "2", "-H", "nodea:2"], script, by_ssh) as launcher:
        launcher.wait_for_lines("<stdout>:ready", 2)
        launcher.send(signal.SIGUSR1)
        ended = launcher.wait()
    assert ended.status == 0
    assert ended.stdout.count("told") == 2


def test_a_connection_that_is_cut_is_one_sentence_and_ends_the_job(tmp_path, by_ssh):
    hosts = "localhost:1,nodea:1"
    with start(tmp_path, ["run", "-np", "2", "-H", hosts], SLEEP, by_ssh) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 2)]
        [client] = launcher.wait_for(lambda: ssh_clients(launcher.process.pid))
        os.kill(client, signal.SIGKILL)
        ended = launcher.wait()
    assert ended.status == 255
    assert " on nodea) was lost: the ssh connection to nodea has ended" in ended.stderr
    wait_until_gone(pids)


def ssh_clients(launcher):
    """The ssh processes below a process."""
    import psutil

    below = psutil.Process(launcher).children(recursive=True)
    return [process.pid for process in below if process.name() == "ssh"]


def test_a_command_that_cannot_be_started_there(tmp_path, by_ssh):
    arguments = ["run", "-np", "2", "-H", "nodea:1,nodeb:1", "no-such-command"]
    ended = launch(tmp_path, arguments, env=by_ssh)
    assert ended.status == 127
    lines = own_lines(ended)
    assert len(lines) == 1
    assert lines[0].endswith(": cannot start 'no-such-command': No such file or directory.")


MISTAKES = [
    ("nodea:1,stranger:1", [], "host stranger: ssh asks for a password or passphrase, or accepts"),
    ("nodea:1,no-such-host.invalid:1", [], "host no-such-host.invalid: no such host is known ("),
    ("nobody:1,nodea:1", [], "host nobody: ssh failed (ssh: connect to host"),
    ("nodea:2", ["--network-interfaces", "eth77"], "host nodea has no interface 'eth77'; it has"),
    ("nodea:2", ["-i", "nowhere"], "--ssh-identity-file nowhere: there is no such file"),
    ("nodea:2", ["-p", "0"], "'0' is not accepted: give a port"),
    ("nodea:2", ["--ssh-command", "ssh 'x"], 'HVDTUNE_SSH_COMMAND is "ssh \'x"'),
    ("nodea:2", ["--ssh-command", "/no/ssh"], "cannot start '/no/ssh' to reach other hosts"),
    ("-v:2", [], "'-v:2' is not accepted"),
]


@pytest.mark.parametrize(("hosts", "flags", "words"), MISTAKES)
def test_what_cannot_be_reached_is_one_sentence(tmp_path, by_ssh, hosts, flags, words):
    ended = launch(tmp_path, ["run", "-np", "2", f"-H={hosts}", *flags, "true"], env=by_ssh)
    assert ended.status in (1, 2)
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert words in ended.stderr


def fake_ssh(folder: Path, body: str) -> dict[str, str]:
    """An ssh that does something else; $host is where it was to go, "$command" what to run."""
    path = folder / "fake-ssh"
    path.write_text(
        "#!/bin/bash\nhost=$7; command=${!#}\n" + body + "\n"
    )  # six words of options before the host
    path.chmod(0o755)
    return {"HVDTUNE_SSH_COMMAND": str(path), "XDG_CACHE_HOME": str(folder / "cache")}


# Runs the command as a login shell elsewhere would, and changes what it says about itself.
OTHER = 'bash -c "$command" | sed {}'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            OTHER.format('\'s/"version": "[^"]*/"version": "9.9/\''),
            "host far1 has hvdtune 9.9, this one",
        ),
        (
            r'PATH=/nowhere exec /bin/bash -c "${command//\/python/-no-}"',
            "host far1: there is no Python: neither this one's path nor python3 nor python",
        ),
        (
            "echo 'fake-ssh: autossh: not found' >&2; exit 127",
            "host far1: ssh ended with status 127 (fake-ssh: autossh: not found)",
        ),
        (
            "echo 'hvdtune cannot be imported by /usr/bin/python3: No module named hvdtune' >&2;"
            "exit 3",
            "host far1: hvdtune cannot be imported by /usr/bin/python3: No module named hvdtune",
        ),
        ("echo Welcome; exit 0", "host far1: ssh ended with status 0 (it said nothing)"),
        ("exec sleep 600", "host far1: it did not answer within 2 s (HOROVOD_START_TIMEOUT)"),
    ],
    ids=["versions", "python", "wrapper", "hvdtune", "noise", "silence"],
)
def test_what_is_not_as_it_should_be_there_is_one_sentence(tmp_path, body, words):
    arguments = ["run", "-np", "2", "-H", "far1:1,far2:1", "--start-timeout"]
    arguments += ["2" if "sleep" in body else "60"]
    ended = launch(tmp_path, [*arguments, "true"], env=fake_ssh(tmp_path, body))
    assert (ended.status, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert words in ended.stderr


@pytest.mark.long
def test_a_login_shell_that_hangs_after_the_check_is_one_sentence(tmp_path):
    body = (
        'if [[ $command == *facts ]]; then exec bash -c "$command"; fi\n'
        "echo 'waiting for the home directory' >&2; exec sleep 600"
    )
    arguments = ["run", "-np", "2", "-H", "far1:1,far2:1", "--start-timeout", "10", "true"]
    ended = launch(tmp_path, arguments, env=fake_ssh(tmp_path, body))
    assert (ended.status, ended.stdout) == (2, "")
    assert own_lines(ended)[-1].startswith(
        "hvdtune run: host far1: nothing was started there within 10 s (HOROVOD_START_TIMEOUT): "
        "ssh runs, but the login shell, or what it starts, hangs"
    )


@pytest.mark.parametrize("seconds", [3600.0, 0.0])
def test_what_was_said_long_ago_is_not_why_a_connection_ends(monkeypatch, seconds):
    from hvdtune.launch.remote import connection as remote

    monkeypatch.setattr(remote, "_REASON_SECONDS", seconds)
    connection = remote.Connection("far", ["sh", "-c", "echo mind the gap >&2"])
    said = b""
    goes_on = True
    while goes_on:
        select.select([connection.errors], [], [])
        lines, goes_on = connection.complaints()
        said += lines
    assert said == b"hvdtune run: far: mind the gap\n"
    why = " (mind the gap)" if seconds else ""
    assert connection.lost() == f"was lost: the ssh connection to far has ended{why}"
    os.waitpid(connection.pid, 0)


def test_every_group_of_hosts_has_its_own_time(monkeypatch):
    from hvdtune.launch.remote import checks
    from hvdtune.launch.remote.ssh import Ssh

    clock = [0.0]
    left = []

    def ask(names, _ssh, deadline):
        left.append((len(names), deadline - clock[0]))
        clock[0] += 25.0
        facts = checks.FACTS + json.dumps({"machine": "m"})
        return {name: checks._Attempt(0, facts, "") for name in names}

    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(checks, "_ask", ask)
    found = checks.check_hosts([f"host{number}" for number in range(70)], Ssh(), 30.0, None)
    assert len(found) == 70
    assert left == [(32, 30.0), (32, 30.0), (6, 30.0)]


def test_another_machine_alone_is_no_mistake(tmp_path):
    """All ranks of a job may be on one machine that is not the launcher's."""
    asked = OTHER.format('\'s#"machine": "#&other#\'')
    body = f'if [[ $command == *facts ]]; then {asked}; else exec bash -c "$command"; fi'
    arguments = ["run", "-np", "2", "-H", "far1:2"]
    ended = launch(tmp_path, arguments, "print('here', rank)\n", fake_ssh(tmp_path, body))
    assert ended.status == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:here 0", "[1]<stdout>:here 1"]


def test_a_connection_that_fails_at_first_is_tried_again(tmp_path):
    body = (
        "if [[ $(wc -l < tries) -lt 2 ]]; then echo $host >> tries\n"
        "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255; fi\n"
        'exec bash -c "$command"'
    )
    (tmp_path / "tries").touch()
    ended = launch(
        tmp_path, ["run", "-np", "1", "-H", "far:1", "true"], env=fake_ssh(tmp_path, body)
    )
    assert ended.status == 0, ended.stderr
    assert (tmp_path / "tries").read_text() == "far\nfar\n"


def test_a_connection_that_ssh_keeps_for_later_is_not_waited_for(tmp_path):
    """As with ControlPersist: a process in the background still holds ssh's stderr."""
    body = 'sleep 600 >/dev/null & echo $! >> kept; bash -c "$command"'
    arguments = ["run", "-np", "1", "-H", "far:1", "--start-timeout", "300"]
    ended = launch(tmp_path, arguments, "print('here')\n", fake_ssh(tmp_path, body))
    for pid in map(int, (tmp_path / "kept").read_text().split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (ended.status, ended.stdout) == (0, "[0]<stdout>:here\n")


def test_what_a_login_shell_prints_does_no_harm(tmp_path):
    body = 'echo "Welcome to $host"; echo "mind the gap" >&2; exec bash -c "$command"'
    ended = launch(
        tmp_path, ["run", "-np", "1", "-H", "far:1"], "print('here')\n", fake_ssh(tmp_path, body)
    )
    assert (ended.status, ended.stdout) == (0, "[0]<stdout>:here\n")
    assert ended.stderr == "hvdtune run: far: mind the gap\n"


def test_hosts_are_asked_once_an_hour_unless_told_not_to_remember(tmp_path, by_ssh, server):
    def logins(*flags):
        before = server.logins()
        ended = launch(
            tmp_path, ["run", "-np", "2", "-H", "nodea:1,nodeb:1", *flags, "true"], env=by_ssh
        )
        assert ended.status == 0, ended.stderr
        return server.logins() - before

    assert logins() == 4  # to ask, and to run
    assert logins() == 3  # the host of rank 0 is always asked
    assert logins("--disable-cache") == 4
    [file] = (tmp_path / "cache/hvdtune").iterdir()
    content = json.loads(file.read_text())
    for entry in content["hosts"]:
        entry["time"] -= 3601
    file.write_text(json.dumps(content))
    assert logins() == 4
    file.write_text("no JSON")
    assert logins() == 4
    assert logins() == 3


# Every host is a machine of its own, and is asked at the address in a file.
MACHINES = r"""
if [[ $command != *facts ]]; then exec bash -c "$command"; fi
echo $host >> asked
export SSH_CONNECTION="192.0.2.1 4711 $(cat address) 22"
bash -c "$command" | sed "s#\"machine\": \"#&$host#"
"""
SHOW_PLACE = 'echo "$HOROVOD_GLOO_RENDEZVOUS_ADDR $HOROVOD_GLOO_IFACE $NCCL_SOCKET_IFNAME"'


def run_on_machines(folder, *flags, hosts="far1:1,far2:1", **variables):
    """A job of two ranks that say where they meet."""
    environment = {**fake_ssh(folder, MACHINES), **variables}
    return launch(
        folder, ["run", "-np", "2", "-H", hosts, *flags, "sh", "-c", SHOW_PLACE], env=environment
    )


def test_the_address_of_rank_0s_host_may_change_within_the_hour(tmp_path):
    for address, asked in (("192.0.2.7", ["far1", "far2"]), ("192.0.2.8", ["far1"])):
        (tmp_path / "address").write_text(address)
        (tmp_path / "asked").write_text("")
        ended = run_on_machines(tmp_path)
        assert ended.status == 0, ended.stderr
        lines = [f"[{rank}]<stdout>:{address}  " for rank in range(2)]
        assert sorted(ended.stdout.splitlines()) == lines
        assert sorted((tmp_path / "asked").read_text().split()) == asked


@pytest.mark.parametrize(
    ("flags", "variable", "told"),
    [
        (["--network-interfaces", "lo"], {}, "lo lo"),
        (["--network-interfaces", "lo"], {"HOROVOD_GLOO_IFACE": "eth77"}, "lo lo"),
        ([], {"HOROVOD_GLOO_IFACE": "lo"}, "lo eth7"),
    ],
)
def test_interfaces_by_flag_or_variable_decide_on_rank_0s_address(tmp_path, flags, variable, told):
    """The flag is for NCCL, too."""
    (tmp_path / "address").write_text("192.0.2.7")
    ended = run_on_machines(tmp_path, *flags, NCCL_SOCKET_IFNAME="eth7", **variable)
    assert ended.status == 0, ended.stderr
    lines = [f"[{rank}]<stdout>:127.0.0.1 {told}" for rank in range(2)]
    assert sorted(ended.stdout.splitlines()) == lines


def test_an_interface_of_the_variable_is_missed_only_between_hosts(tmp_path):
    (tmp_path / "address").write_text("192.0.2.7")
    ended = run_on_machines(tmp_path, HOROVOD_GLOO_IFACE="eth77")
    assert (ended.status, ended.stdout) == (2, "")
    beginning = "hvdtune run: HOROVOD_GLOO_IFACE: host far1 has no interface 'eth77'; it has "
    assert ended.stderr.startswith(beginning)
    assert ended.stderr.count("\n") == 1
    alone = run_on_machines(tmp_path, hosts="far1:2", HOROVOD_GLOO_IFACE="eth77")
    assert alone.status == 0, alone.stderr


def test_what_was_mended_is_not_refused_for_what_is_remembered(tmp_path):
    arguments = ["run", "-np", "1", "-H", "far1:1", "true"]
    old = fake_ssh(tmp_path, OTHER.format('\'s/"version": "[^"]*/"version": "9.9/\''))
    for _ in range(2):
        ended = launch(tmp_path, arguments, env=old)
        assert (ended.status, "host far1 has hvdtune 9.9, this one" in ended.stderr) == (2, True)
    ended = launch(tmp_path, arguments, env=fake_ssh(tmp_path, 'exec bash -c "$command"'))
    assert ended.status == 0, ended.stderr


def test_a_dry_run_contacts_nobody(tmp_path, by_ssh, server):
    before = server.logins()
    arguments = ["run", "-np", "3", "-H", "localhost:1,nodea:2", "-p", "2222", "--dry-run"]
    ended = launch(
        tmp_path, [*arguments, "touch", "it"], env={**by_ssh, "HVDTUNE_SECRET": "5ecret"}
    )
    assert ended.status == 0
    lines = ended.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("env ")
    assert lines[1].startswith(f"{server.client} -o PasswordAuthentication=no ")
    assert " nodea -p 2222 " in lines[1]
    assert all(line.startswith("# on nodea: env ") for line in lines[2:])
    assert "5ecret" not in ended.stdout
    assert server.logins() == before
    assert not (tmp_path / "it").exists()
