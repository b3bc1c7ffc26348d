"""Runs the programs of the native tests, also in the gaps of other tests.

What runs there, at the lowest priority, may be kept waiting for longer than it allows. So a program
that fails there decides nothing: it runs again when its turn comes. What a sanitizer has found
counts wherever it was found.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

# The first error ends a program with a report.
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
REPORTS = ("ERROR: AddressSanitizer", "LeakSanitizer: ", "ThreadSanitizer: ", "runtime error: ")
SOURCES = Path(__file__).parent / "native"
SECONDS = 600  # that a program may take in the gaps
LAST = 12_000  # characters of an output that are shown


def names() -> list[str]:
    """Of the programs that need nothing but themselves."""
    return sorted(source.stem for source in SOURCES.glob("test_*.cc"))


def run(command: list[str], **variables: str) -> str:
    """What was wrong: the command and the end of its output; empty if nothing was."""
    done = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return f"{' '.join(command)}\n{done.stdout[-LAST:]}" if done.returncode != 0 else ""


@dataclass(frozen=True)
class Early:
    """What ran in the gaps, of one build. passed: names. reports: what sanitizers found."""

    passed: frozenset[str]
    reports: tuple[str, ...]


def early(programs: Path) -> Early:
    """Of the build whose programs are in that folder."""
    passed, reports = set(), []
    for file in sorted(_results(programs).glob("*")):
        output = file.read_text(errors="replace")
        if not output:
            passed.add(file.name)
        elif any(report in output for report in REPORTS):
            reports.append(f"{file.name}, run in the gaps of other tests:\n{output}")
    return Early(frozenset(passed), tuple(reports))


class Gaps:
    """Between the process that runs programs early and the one that tells it to stop, by files in
    `directory`. A program that has begun is never cut off: it would leave what it shares."""

    def __init__(self, directory: Path) -> None:
        self._stop = directory / "stop"
        self._running = directory / "running"

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
        for name in names():
            self._running.touch()
            try:
                if self._stop.exists():
                    return
                _run_early(programs, name)
            finally:
                self._running.unlink()


def _run_early(programs: Path, name: str) -> None:
    process = subprocess.Popen(
        [str(programs / name)],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    result = "" if process.returncode == 0 else output[-LAST:] or "no output"
    (_results(programs) / name).write_text(result)


def _results(programs: Path) -> Path:
    return programs / "early"
