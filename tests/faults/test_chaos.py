"""Launchers that get SIGINT, SIGTERM or SIGKILL at any moment: nothing of their jobs is left."""

from __future__ import annotations

import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.jobs.launcher import hear_signals
from support.jobs.ranks import clean_environment, hvdtune_command
from support.tiers import EVERY

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
SECONDS = 150.0 if EVERY else 30.0
MOST_JOBS = 150
# What a job may take to be gone on a machine that has other work; the longest is printed.
ENDED_WITHIN = 15.0
MARK = "HVDTUNE_TEST_CHAOS"
# A line of a traceback of the launcher's: the ranks' lines begin otherwise.
OWN_FRAME = r'^  File "[^"]*/hvdtune/[^"]*\.py"'

# It ends by itself after `sys.argv[1]` seconds.
TRAINING = """
import sys, time
import numpy as np
import hvdtune as hvd
hvd.init()
end = time.monotonic() + float(sys.argv[1])
while not hvd.allreduce(np.array([time.monotonic() > end], np.float32), name="end")[0]:
    for number in range(4):
        hvd.allreduce(np.ones(1000, np.float32), name=f"gradient {number}")
hvd.shutdown()
"""


def marked(mark: str) -> list[int]:
    """The living processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                ours = f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if ours and state not in "ZX":
                found.append(int(entry.name))
    return found


class Chaos:
    """Jobs that are interrupted, one after another; `longest` is what one took to be gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seed = int(os.environ.get("HVDTUNE_TEST_SEED", secrets.randbits(32)))
        print(f"seed: HVDTUNE_TEST_SEED={self.seed}")
        self.random = random.Random(self.seed)
        self.longest = 0.0
        self.statuses: dict[str, int] = {}
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        (folder / "train.py").write_text(TRAINING)

    def command(self, number: int) -> list[str]:
        """One of the jobs that people run."""
        words = ["run", "-np", str(self.random.randint(2, 4))]
        if self.random.random() < 0.4:
            words += ["--timeline-filename", f"timeline-{number}.json"]
        if self.random.random() < 0.3:
            words += ["--autotune"]
        length = self.random.choice(["0", "0.5", "30"])
        return hvdtune_command(*words, sys.executable, "train.py", length)

    def one(self, command: list[str], moment: float) -> str:
        """Run and interrupt it; what it had printed."""
        number, mark = self.random.choice(SIGNALS), secrets.token_hex(8)
        told = f"{number.name} after {moment:.3f} s: {' '.join(command)}"
        environment = clean_environment({MARK: mark, "TMPDIR": str(self.temporary)})
        output = self.folder / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, preexec_fn=hear_signals,
            )  # fmt: skip
        left: list[int] = []
        try:
            time.sleep(moment)
            process.send_signal(number)
            began = time.monotonic()
            while process.poll() is None or (left := marked(mark)):
                if time.monotonic() - began > ENDED_WITHIN:
                    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
                    raise AssertionError(f"left by {told}: {lines}\n{output.read_text()}")
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait()
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
        took = time.monotonic() - began
        if took > self.longest:
            print(f"{took:.2f} s: {told}")
            self.longest = took
        # 0: it had ended by itself. The negative ones: before it could hear. 1: Python itself was
        # interrupted while it started, before it came to a line of hvdtune's.
        allowed = (0, -number) if number == signal.SIGKILL else (0, 128 + number, -number)
        text = output.read_text()
        if text.rstrip().endswith("KeyboardInterrupt") and not re.search(OWN_FRAME, text, re.M):
            allowed += (1,)
        assert process.returncode in allowed, (told, process.returncode, output.read_text())
        self.statuses[str(process.returncode)] = self.statuses.get(str(process.returncode), 0) + 1
        assert not os.listdir(self.temporary), told
        return output.read_text(errors="replace")

    def tell(self) -> None:
        """Print what is worth knowing when all went well."""
        jobs = sum(self.statuses.values())
        print(
            f"{jobs} jobs, statuses {self.statuses}; the longest took {self.longest:.2f} s to end"
        )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_training_is_interrupted_at_random_moments(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path)
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end and number < MOST_JOBS:
        moment = chaos.random.choice([0.2, 1.0, 3.0]) * chaos.random.random()
        text = chaos.one(chaos.command(number), moment)
        # Before Python comes to a line of hvdtune's, what it prints is its own.
        assert not re.search(OWN_FRAME, text, re.MULTILINE), text
        number += 1
    chaos.tell()
    assert number > 5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_ranks_are_interrupted_at_random_moments(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path)
    for _ in range(8):
        chaos.one(hvdtune_command("run", "-np", "1000", "sleep", "100"), 6 * chaos.random.random())
    chaos.tell()


@pytest.mark.long
def test_a_thousand_ranks_start_and_end(tmp_path: Path) -> None:
    ended = subprocess.run(
        hvdtune_command("run", "-np", "1000", "echo", "here"),
        env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("<stdout>:here\n") == 1000
