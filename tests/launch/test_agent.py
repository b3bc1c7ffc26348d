"""The launcher's hand on another host, spoken to directly: `hvdtune.launch.remote.agent`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.jobs.launcher import TIMEOUT, alive, wait_until_gone
from support.jobs.ranks import clean_environment

from hvdtune.bootstrap import python_command
from hvdtune.launch.remote.frames import FrameReader, Kind, encode


class Agent:
    """A running agent, which first executes the code `before`; use as a context manager."""

    def __init__(self, folder: Path, mode: str = "run", before: str = "") -> None:
        command = python_command("hvdtune.launch.remote.agent", mode)
        command[2] = before + command[2]
        self.process = subprocess.Popen(
            command,
            env=clean_environment(), cwd=folder, bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.frames = []
        self._reader = FrameReader(after_mark=True)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def send(self, kind: Kind, rank: int = 0, payload: bytes = b"") -> None:
        self.process.stdin.write(encode(kind, rank, payload))

    def start(self, script: str, ranks=(0,), **changes: object) -> None:
        order = {
            "command": [sys.executable, "-c", script],
            "directory": "/",
            "shared": {"SHARED": "yes"},
            "places": {rank: {"HOROVOD_RANK": str(rank)} for rank in ranks},
            **changes,
        }
        self.send(Kind.START, 0, json.dumps(order).encode())

    def wait_for(self, kind: Kind, count: int = 1) -> list[bytes]:
        """Read until `count` frames of a kind have come; their payloads."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            found = [frame.payload for frame in self.frames if frame.kind == kind]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, self.frames
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, (self.frames, self.process.stderr.read())
            self.frames += self._reader.feed(data)

    def written(self, rank: int) -> bytes:
        """What a rank has written to stdout."""
        return b"".join(f.payload for f in self.frames if (f.kind, f.number) == (Kind.STDOUT, rank))

    def end(self) -> tuple[int, str]:
        """Say nothing more; exit status and stderr."""
        self.process.stdin.close()
        # Read on: what it still has to send must not hold it up.
        while data := os.read(self.process.stdout.fileno(), 65536):
            self.frames += self._reader.feed(data)
        errors = self.process.stderr.read().decode()
        return self.process.wait(TIMEOUT), errors


@pytest.fixture
def agent(tmp_path):
    with Agent(tmp_path) as running:
        yield running


def test_ranks_run_with_their_places_and_end(agent):
    agent.start(
        "import os, sys; print(os.environ['HOROVOD_RANK'], os.environ['SHARED'], os.getcwd(), "
        "end=''); sys.exit(int(os.environ['HOROVOD_RANK']))",
        ranks=(3, 5),
    )
    assert sorted(agent.wait_for(Kind.EXIT, 2)) == [b"3", b"5"]
    assert agent.written(3) == b"3 yes /"
    assert agent.written(5) == b"5 yes /"
    started = [int(pid) for pid in agent.wait_for(Kind.STARTED, 2)]
    assert agent.end() == (0, "")
    wait_until_gone(started)


def test_an_agent_that_serves_says_what_it_is_and_starts_more_whenever_it_is_told(tmp_path):
    with Agent(tmp_path, "serve") as agent:
        [facts] = agent.wait_for(Kind.FACTS)
        assert json.loads(facts)["executable"] == sys.executable
        agent.start("import os; print(os.environ['HOROVOD_RANK'], end='')", ranks=(0, 7))
        assert agent.wait_for(Kind.EXIT, 2) == [b"0", b"0"]
        agent.start("import subprocess; subprocess.Popen(['sleep', '60']); print('first', end='')")
        agent.wait_for(Kind.EXIT, 3)
        agent.start("print('second', end=''); import time; time.sleep(60)", ranks=(1 << 31,))
        started = [int(pid) for pid in agent.wait_for(Kind.STARTED, 4)]
        agent.wait_for(Kind.STDOUT, 4)
        assert agent.written(7) == b"7"
        assert agent.written(0) == b"0first"
        assert agent.written(1 << 31) == b"second"
        assert alive(started[-1])
        assert agent.end() == (0, "")
        wait_until_gone(started)


def test_workers_do_not_ignore_what_the_agent_does(agent):
    agent.start("import signal; print(signal.getsignal(signal.SIGHUP).name, end='')")
    agent.wait_for(Kind.EXIT)
    assert agent.written(0) == b"SIG_DFL"


def test_all_output_comes_before_the_end(agent):
    agent.start("import sys; print('x' * 300_000, end=''); sys.stderr.write('last')")
    agent.wait_for(Kind.EXIT)
    assert agent.frames[-1].kind == Kind.EXIT
    assert len(agent.written(0)) == 300_000
    assert agent.wait_for(Kind.STDERR) == [b"last"]


@pytest.mark.parametrize("kind", [Kind.SIGNAL, Kind.SIGNAL_GROUP])
def test_signals(agent, kind):
    agent.start("import time; print('up', flush=True); time.sleep(600)", ranks=(0, 1))
    agent.wait_for(Kind.STDOUT, 2)
    agent.send(kind, 1, b"10")
    assert agent.wait_for(Kind.EXIT) == [b"-10"]
    agent.send(kind, 7, b"9")  # nobody
    agent.send(kind, 1, b"9")  # nobody any more
    agent.send(kind, 0, b"9")
    assert agent.wait_for(Kind.EXIT, 2) == [b"-10", b"-9"]
    assert agent.end() == (0, "")


# As if the workers ran as another user, with sudo.
REFUSE = "import os\ndef refuse(*_): raise PermissionError\nos.killpg = refuse\n"


def test_workers_that_may_not_be_signalled_are_left_alone(tmp_path):
    with Agent(tmp_path, "serve", REFUSE) as agent:
        agent.start("import time; time.sleep(600)", ranks=(0, 1))
        pids = [int(pid) for pid in agent.wait_for(Kind.STARTED, 2)]
        agent.send(Kind.SIGNAL_GROUP, 0, b"15")
        agent.send(Kind.SIGNAL, 0, b"9")
        assert agent.wait_for(Kind.EXIT) == [b"-9"]
        assert agent.end() == (0, "")
        wait_until_gone(pids)


def test_a_directory_that_is_not_there(agent, tmp_path):
    agent.start("import os; print(os.getcwd(), end='')", directory="/not/here")
    agent.wait_for(Kind.EXIT)
    assert agent.written(0).decode() == str(tmp_path)
    assert agent.end() == (
        0,
        f"/not/here: No such file or directory; the command runs in {tmp_path}\n",
    )


def test_a_command_that_is_not_there(agent):
    agent.start("", command=["/not/here"])
    wanted = b"127 cannot start '/not/here': No such file or directory."
    assert agent.wait_for(Kind.NOT_STARTED) == [wanted]
    assert agent.end() == (0, "")


STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "os.write(1, f'{os.getpid()} {child.pid}'.encode())\n"  # at once
)


@pytest.mark.parametrize("way", ["eof", "garbage", "killed"])
def test_without_a_launcher_nothing_is_left(agent, way):
    agent.start(STUBBORN + "time.sleep(600)")
    [line] = agent.wait_for(Kind.STDOUT)
    if way == "killed":
        agent.process.kill()
        [worker, _] = map(int, line.split())
        wait_until_gone([worker])
        os.kill(int(line.split()[1]), signal.SIGKILL)  # its own child is nobody's business then
        return
    if way == "garbage":
        agent.process.stdin.write(b"\xff" * 100)
    status, errors = agent.end()
    assert status == 0
    assert errors == (
        "hvdtune: the launcher sent a frame of kind 255 and 4294967295 bytes\n"
        if way == "garbage"
        else ""
    )
    wait_until_gone([int(pid) for pid in line.split()])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_told_to_end_ends_everything(agent, number):
    agent.start(STUBBORN + "time.sleep(600)")
    [line] = agent.wait_for(Kind.STDOUT)
    agent.process.send_signal(number)
    agent.process.wait(TIMEOUT)
    wait_until_gone([int(pid) for pid in line.split()])
    assert agent.end() == (0, "")


def test_a_launcher_that_does_not_read_holds_up_output_but_not_the_end(agent):
    agent.start("import os\nwhile True: os.write(1, b'x' * 65536)")
    [pid] = agent.wait_for(Kind.STARTED)
    agent.process.stdin.close()
    agent.process.wait(TIMEOUT)
    wait_until_gone([int(pid)])


def test_orders_that_make_no_sense_start_nothing(agent):
    agent.send(Kind.SIGNAL, 0, b"9")
    agent.send(Kind.START, 0, b'{"command": ["true"]}')
    status, errors = agent.end()
    assert (status, agent.frames) == (0, [])
    assert errors == "hvdtune: the launcher sent 'shared'\n"
