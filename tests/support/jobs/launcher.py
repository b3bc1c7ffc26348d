"""Runs the launcher as a real process on small scripts that need no engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.jobs.ranks import clean_environment, hvdtune_command

TIMEOUT = 60.0


@dataclass(frozen=True)
class Ended:
    """How the launcher ended: exit status (negative: minus the signal) and output."""

    status: int
    stdout: str
    stderr: str


def hear_signals() -> None:
    """Before a launcher starts."""
    # What a shell's background job ignores, or one under nohup, its children would ignore, too.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Launcher:
    """A running `hvdtune …`. Use as a context manager: leaving it kills the launcher."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str | None], cwd: Path) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.process = subprocess.Popen(
            hvdtune_command(*arguments),
            env=clean_environment(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            preexec_fn=hear_signals,
        )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        for file in self._files:
            file.close()

    def output(self, stream: int) -> str:
        """What has been written to stdout (0) or stderr (1) until now."""
        size = os.fstat(self._files[stream].fileno()).st_size
        return os.pread(self._files[stream].fileno(), size, 0).decode("utf-8", "surrogateescape")

    def wait_for(self, condition: Any) -> Any:
        """Wait until `condition()` is true and return its value."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"never happened\n{self.output(0)}\n{self.output(1)}")
            time.sleep(0.01)

    def wait_for_lines(self, text: str, count: int) -> list[str]:
        """Wait until `count` complete lines of stdout contain `text`; return what follows it."""

        def found() -> list[str] | None:
            complete = self.output(0).rpartition("\n")[0].split("\n")
            lines = [line.partition(text)[2] for line in complete if text in line]
            return lines if len(lines) >= count else None

        return list(self.wait_for(found))

    def send(self, number: int) -> None:
        """Send the launcher a signal."""
        self.process.send_signal(number)

    def wait(self) -> Ended:
        """Wait for the launcher's end."""
        status = self.process.wait(TIMEOUT)
        return Ended(status, self.output(0), self.output(1))


def start(
    folder: Path,
    arguments: Sequence[str],
    script: str | None = None,
    env: Mapping[str, str | None] | None = None,
) -> Launcher:
    """Start `hvdtune ARGUMENTS`; with `script`, its text becomes a file that Python runs."""
    words = list(arguments)
    if script is not None:
        path = folder / f"worker{len(list(folder.glob('worker*.py')))}.py"
        path.write_text(PRELUDE + script, encoding="utf-8")
        words += [sys.executable, str(path)]
    return Launcher(words, env or {}, folder)


def launch(
    folder: Path,
    arguments: Sequence[str],
    script: str | None = None,
    env: Mapping[str, str | None] | None = None,
) -> Ended:
    """Run `hvdtune ARGUMENTS` to its end; see `start`."""
    with start(folder, arguments, script, env) as launcher:
        return launcher.wait()


def environments(ended: Ended) -> list[dict[str, str]]:
    """The environments that workers running `SHOW_ENVIRONMENT` had, in rank order."""
    assert ended.status == 0, ended
    found = [json.loads(line.partition("<stdout>:")[2]) for line in ended.stdout.splitlines()]
    return sorted(found, key=lambda environment: int(environment["HOROVOD_RANK"]))


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_until_gone(pids: Sequence[int]) -> None:
    """Wait until none of the processes is left; fails naming those that are."""
    deadline = time.monotonic() + TIMEOUT
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"processes {left} are left")
        time.sleep(0.01)


# Every worker script begins with these names.
PRELUDE = """\
import json, os, signal, subprocess, sys, time
rank, size = (int(os.environ.get(f"HOROVOD_{name}", -1)) for name in ("RANK", "SIZE"))
"""
SHOW_ENVIRONMENT = "print(json.dumps(dict(os.environ)))\n"
SLEEP = "print('pid', os.getpid())\ntime.sleep(600)\n"
