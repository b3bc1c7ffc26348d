"""Runs the native tests, file by file, also in the gaps of other tests.

What runs there, at the lowest priority, may be kept waiting for longer than it allows. So a file
that fails there decides nothing: it runs again when its turn comes. What a sanitizer has found
counts wherever it was found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# The first error ends a program with a report.
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
REPORTS = ("SUMMARY: ", "runtime error: ")
SOURCES = Path(__file__).parents[1] / "native"
SECONDS = 600  # that a program may take
LAST = 12_000  # characters of an output that are shown
PASSED = "passed"


@dataclass(frozen=True)
class TestFile:
    """A file of native tests that need nothing but themselves; each runs in its own process."""

    room: str
    name: str

    def command(self, programs: Path) -> list[str]:
        """Runs its tests, with what was built in that folder."""
        return [str(programs / f"{self.room}_tests"), f"{self.name}."]


def test_files() -> list[TestFile]:
    """All of them."""
    return [TestFile(file.parent.name, file.stem) for file in sorted(SOURCES.glob("*/test_*.cc"))]


def run(command: list[str], seconds: float = SECONDS, **variables: str) -> str:
    """What was wrong: the command and its output; empty if nothing was. Nothing of it runs on."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            output.write(f"\nnot over after {seconds} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            return ""
        output.seek(0)
        return f"{' '.join(command)}: {process.returncode}\n{output.read()}"


def found(output: str) -> bool:
    """A sanitizer has found something, more than too little memory."""
    return any(report in output for report in REPORTS) and "out-of-memory" not in output


@dataclass(frozen=True)
class Early:
    """What ran in the gaps, of one build. passed: names. reports: what sanitizers found."""

    passed: frozenset[str]
    reports: tuple[str, ...]


def early(programs: Path) -> Early:
    """Of the build whose programs are in that folder."""
    passed, reports = set(), []
    for file in sorted(_results(programs).glob("*.txt")):
        output = file.read_text(errors="replace")
        if output == PASSED:
            passed.add(file.stem)
        elif found(output):
            reports.append(f"{file.stem}, run in the gaps of other tests:\n{output[-LAST:]}")
    return Early(frozenset(passed), tuple(reports))


class Gaps:
    """Between the process that runs programs early and the one that tells it to stop, by files in
    `directory`. A program that has begun is never cut off: it would leave what it shares."""

    def __init__(self, directory: Path) -> None:
        self._stop = directory / "stop"
        self._running = directory / "running"

    def forget(self) -> None:
        """What an earlier test run has left in the directory: its request to stop, its results."""
        self._stop.unlink(missing_ok=True)
        self._running.unlink(missing_ok=True)
        for results in self._stop.parent.glob("*/tests/native/early"):
            shutil.rmtree(results)

    def stop(self) -> None:
        """Nothing more is begun."""
        self._stop.touch()

    @property
    def busy(self) -> bool:
        """A program runs."""
        return self._running.exists()

    def run_all(self, programs: Path) -> None:
        """Run one after the other, until told to stop."""
        _results(programs).mkdir()
        for file in test_files():
            self._running.touch()
            try:
                if self._stop.exists():
                    return
                _run_early(programs, file)
            finally:
                self._running.unlink()


def _run_early(programs: Path, file: TestFile) -> None:
    result = _results(programs) / f"{file.name}.txt"
    unfinished = result.with_suffix(".part")
    unfinished.write_text(run(file.command(programs)) or PASSED)
    unfinished.rename(result)


def _results(programs: Path) -> Path:
    return programs / "early"
