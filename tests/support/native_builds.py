"""Builds the native tests under the sanitizers, in the background where there are many others, and
runs them there.

Most tests wait: for processes to start, for a limit to be over. In their gaps, at a priority at
which it takes nothing from them, this is done before its turn comes.

    python native_builds.py DIRECTORY SANITIZERS...     builds with these, at the lowest priority
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT / "tests")

from support.native_runs import SECONDS, Gaps  # noqa: E402

COMPILER = os.environ.get("CXX", "c++")
SANITIZERS = ("address,undefined", "thread")
JOBS = "2"
KEPT = ROOT / "build/native-tests"


class BuildFailed(Exception):
    """With the end of what was printed."""


def tool(name: str) -> str:
    """The path of `name`: the machine's own, or the one of the PyPI wheel."""
    found = shutil.which(name)
    if found is None and importlib.util.find_spec(name) is not None:
        found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        raise BuildFailed(
            f"no {name} on PATH, and the {name} package is not installed: pip install .[test]"
        )
    return found


def build(sanitizer: str, directory: Path, target: str = "all") -> Path:
    """Build `target` with `sanitizer`, or what is left to build; the folder of the programs."""
    cmake = tool("cmake")
    options = {
        "HVDTUNE_BUILD_PYTHON": "OFF",
        "HVDTUNE_BUILD_TESTS": "ON",
        "HVDTUNE_BUILD_IN_BATCHES": "ON",
        # No GPU runs here; the fake one has the kernels, compiled for the host (host_kernels.cc).
        "HVDTUNE_BUILD_CUDA": "OFF",
        "HVDTUNE_SANITIZE": sanitizer,
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_COMPILER": COMPILER,
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    folder = directory / sanitizer.replace(",", "-")
    # A process of a test run that was killed may build here still.
    with (directory / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run([cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *defines])
        _run([cmake, "--build", str(folder), "-j", JOBS, "--target", target])
    return folder / "tests/native"


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}\n{done.stdout[-12000:]}")


class NativeBuilds:
    """The builds of one test run, in `directory`, which may hold those of an earlier run.

    Processes that share the tests of one run (`pytest -n 2`) share the directory, too: one of them
    owns it and begins the builds, another may use them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._gaps = Gaps(directory)
        self._group = directory / "group"  # of the processes that build in the background
        self._lock: IO[str] | None = None  # held as long as it is open
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._built: dict[tuple[str, str], Path] = {}

    @classmethod
    def own(cls) -> NativeBuilds:
        """Those in `build/native-tests`, which serve the next test run, too; in a temporary
        directory if another test run uses them now, or nothing can be written there."""
        try:
            KEPT.mkdir(parents=True, exist_ok=True)
            lock = (KEPT / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            builds = cls(KEPT)
            builds._lock = lock
        except OSError:
            temporary = tempfile.TemporaryDirectory(prefix="hvdtune-native-tests-")
            builds = cls(Path(temporary.name))
            builds._temporary = temporary
        builds._gaps.forget()
        builds._group.unlink(missing_ok=True)
        return builds

    def begin(self, sanitizers: list[str]) -> None:
        """Build and run with these in the background. It is no child of this process: what children
        a test leaves is checked."""
        words = [sys.executable, __file__, str(self.directory), *sanitizers]
        command = f"{shlex.join(words)} >/dev/null 2>&1 &"
        # What runs there holds the lock, too: it may outlive a test run that is killed.
        kept = [self._lock.fileno()] if self._lock else []
        shell = subprocess.Popen(["sh", "-c", command], start_new_session=True, pass_fds=kept)
        self._group.write_text(str(shell.pid))
        shell.wait()

    def programs(self, sanitizer: str, target: str = "all") -> Path:
        """The folder of what is built with `sanitizer` for `target`. Raises BuildFailed."""
        self.stop()
        key = (sanitizer, target)
        if key not in self._built:
            self._built[key] = build(sanitizer, self.directory, target)
        return self._built[key]

    def end(self) -> None:
        """The test run is over."""
        self.stop()
        if self._temporary:
            self._temporary.cleanup()

    def stop(self) -> None:
        """Stop what builds in the background, and what runs there as soon as it is over; what was
        built stays, and what is known of the runs."""
        try:
            group = int(self._group.read_text())
        except FileNotFoundError:  # nothing was begun, or another process has stopped it
            return
        self._gaps.stop()
        longest = time.monotonic() + SECONDS
        number = signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):  # the group is empty
            while self._gaps.busy and time.monotonic() < longest:
                os.killpg(group, 0)
                time.sleep(0.05)
            for _ in range(200):
                os.killpg(group, number)
                number = signal.SIGKILL
                time.sleep(0.05)
        self._group.unlink(missing_ok=True)


def main() -> int:
    """What runs in the background. What does not succeed here will be told when it is its turn."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    directory = Path(sys.argv[1])
    try:
        built = [build(sanitizer, directory) for sanitizer in sys.argv[2:]]
    except BuildFailed:
        return 1
    for programs in built:
        Gaps(directory).run_all(programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
