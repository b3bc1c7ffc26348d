"""Ranks that are forked from a process that has made the imports that take long.

Before a rank program's first line, a fresh interpreter computes for a quarter of a second, and for
two to six where the program imports a framework. So, within a pytest session, a rank that runs a
function (``ranks.start_ranks``) is forked from a *nursery*: ``nursery_main.py``, which has imported
NumPy, and the frameworks that the function's module imports. It is started by the first job that
can use it and ended with the session, or by itself when pytest is gone. hvdtune and its native
module are not imported there; every rank loads them itself, with its own environment. Nor has a
nursery computed anything with a framework: only then do TensorFlow and JAX start threads.

A forked rank looks as a fresh process does: a session and files of its own, exactly the
environment that it was given, random numbers of its own, the interpreter's normal end. What
differs: NumPy, pytest, the frameworks that the program uses, and what they import, are in
``sys.modules``; memory is shared with the nursery until it is written; ``/proc/PID/cmdline`` and,
but for the test's mark, ``/proc/PID/environ`` are the nursery's. A test that looks at these, or at
what starting a process costs, asks for ``start_ranks(..., fresh=True)``; that is the one way to say
so. A job whose environment has other values of what the dynamic linker, the interpreter or a
library reads when it is loaded (START_UP) gets fresh interpreters by itself. What Keras, TensorFlow
and JAX read then (OF_FRAMEWORKS) has few values in all: each job that uses them has nurseries with
its own. ``HVDTUNE_TEST_NURSERY=0`` gives fresh interpreters to all jobs, to find out whether it
makes a difference.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

MAIN = Path(__file__).with_name("nursery_main.py")
START_TIMEOUT = 120.0  # seconds; a machine's first import of PyTorch reads hundreds of megabytes
ANSWER_TIMEOUT = 60.0  # seconds for a fork, on a machine that has much else to do

# By it a test's processes are found. In a forked rank it stands where the nursery's stood when that
# was started: /proc/PID/environ is the memory of a process at its beginning.
MARK = "HVDTUNE_TEST_MARK"
NO_MARK = "-" * 32

# Ranks of a job must not depend on the order of a set, which is another one in every interpreter:
# neighbours come from different ones.
NURSERIES = 2

# What is imported before a fork. The first optimizer of a process imports torch._dynamo.
NUMPY = ("numpy", "pytest")
TORCH = ("torch", "torch._dynamo")
# What is imported besides for modules that import these. Keras imports its backend.
FRAMEWORKS = {
    "torch": TORCH,
    "lightning": TORCH,
    "tensorflow": ("keras", "tensorflow"),
    "keras": ("keras",),
    "tf_keras": ("tf_keras",),
    "jax": ("jax",),
    # What training for one of Spark's estimators needs.
    "pyspark": ("pandas", "pyarrow.parquet", "pyspark.ml", "lightning.pytorch"),
}
TEST_MODULES = ("rank_programs.", "conformance.")

# Variables that are read while a process or a library starts, and not again.
START_UP = (
    *("LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "PYTHON"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "NPY_", "NUMPY_"),
    *("TORCH", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "CUDA_"),
)
READERS = frozenset({"tensorflow", "keras", "tf_keras", "jax"})
OF_FRAMEWORKS = ("KERAS_", "TF_", "JAX_", "XLA_", "CUDA_")


Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Order:
    """A rank that is wanted."""

    command: list[
        str
    ]  # that of the fresh interpreter which it stands for: Python, script, argument
    environment: dict[str, str]
    directory: str  # where it works
    stdout: str  # the files it writes to
    stderr: str


class NurseryFailed(RuntimeError):
    """A nursery could not be started, or does not answer."""


class RankProcess:
    """A forked rank, as ``subprocess.Popen`` is a started one.

    The nursery is its parent and keeps it as a zombie until ``poll`` or ``wait`` has seen its end:
    until then its pid is nobody else's.
    """

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._end: int | None = os.pidfd_open(pid)

    def __del__(self) -> None:
        if self._end is not None:
            os.close(self._end)

    def poll(self) -> int | None:
        """The exit code (negative: minus the signal), or None while it runs."""
        return self.returncode if self._ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one; ``subprocess.TimeoutExpired`` after ``timeout``."""
        if not self._ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"forked rank {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the end is known."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended(self, timeout: float | None) -> bool:
        if self._end is not None and _readable(self._end, timeout):
            self.returncode = self._nursery.end_of(self.pid)
            os.close(self._end)
            self._end = None
        return self._end is None


class Nursery:
    """The tests' side of one nursery: starts it and asks it for ranks. Threads may share it.

    ``modules`` are imported there.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = NUMPY) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # A session of its own: Ctrl-C is for pytest, which ends it.
            self._process = subprocess.Popen(
                [sys.executable, str(MAIN), str(theirs.fileno()), *modules],
                env={**environment, MARK: NO_MARK},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        try:
            self._answer(0, START_TIMEOUT)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the nursery."""
        return self._process.pid

    def fork(self, order: Order) -> RankProcess:
        """A new rank, which runs by itself."""
        return RankProcess(self, self._ask("fork", asdict(order)))

    def end_of(self, pid: int) -> int:
        """The exit code of a rank that has ended; the system forgets the process."""
        return os.waitstatus_to_exitcode(self._ask("end", pid))

    def close(self) -> None:
        """End the nursery. Its ranks, if some still run, go on."""
        self._socket.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _ask(self, what: str, about: Any) -> Any:
        with self._lock:
            self._number += 1
            try:
                self._socket.send(pickle.dumps((self._number, what, about)))
            except OSError as problem:
                raise NurseryFailed(f"the nursery hears nothing: {problem}{self._told()}") from None
            return self._answer(self._number, ANSWER_TIMEOUT)

    def _answer(self, number: int, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while _readable(self._socket.fileno(), max(0.0, deadline - time.monotonic())):
            data = self._socket.recv(1 << 18)
            if not data:
                raise NurseryFailed(f"the nursery has ended{self._told()}")
            answered, value, problem = pickle.loads(data)
            # A test's timeout may have interrupted who waited for an earlier answer.
            if answered == number:
                if problem:
                    raise NurseryFailed(f"the nursery: {problem}{self._told()}")
                return value
        raise NurseryFailed(f"the nursery did not answer within {timeout:g} s{self._told()}")

    def _told(self) -> str:
        """What it has written to stderr."""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        return f"; its stderr:\n{text[-4000:]}" if text else ""


class Nurseries:
    """The nurseries of a pytest session; a job's ranks are forked from them in turn.

    ``environment`` is that of a rank for which no test has set a variable.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._started: dict[tuple[tuple[str, ...], Variables], list[Nursery]] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()

    @property
    def pids(self) -> set[int]:
        """The nurseries' process ids."""
        return {nursery.pid for group in list(self._started.values()) for nursery in group}

    def suit(self, environment: Mapping[str, str], modules: Sequence[str] = NUMPY) -> bool:
        """Whether a rank with this environment can be forked, by the calling process."""
        if os.environ.get("HVDTUNE_TEST_NURSERY") == "0" or os.getpid() != self._owner:
            return False
        mark = environment.get(MARK, NO_MARK)
        own = _read_by(modules)
        return len(mark) == len(NO_MARK) and (
            start_up(environment, own) == start_up(self._environment, own)
        )

    def fork(self, rank: int, order: Order, modules: Sequence[str] = NUMPY) -> RankProcess:
        """Rank number ``rank`` of a job, which imports ``modules`` in any case.

        The first call starts the nurseries of its kind.
        """
        own = variables(order.environment, _read_by(modules))
        if "keras" in modules and dict(own).get("KERAS_BACKEND", "tensorflow") == "tensorflow":
            # The two import each other: one kind.
            modules = (*NUMPY, "keras", "tensorflow")
            own = tuple(pair for pair in own if pair[0] != "KERAS_BACKEND")
        with self._lock:
            group = self._started.setdefault((tuple(modules), own), [])
            if len(group) < NURSERIES:
                self._start(group, modules, own)
        return group[rank % NURSERIES].fork(order)

    def _start(self, group: list[Nursery], modules: Sequence[str], own: Variables) -> None:
        """Those of a kind, side by side."""
        environment = {
            name: text
            for name, text in self._environment.items()
            if not name.startswith(_read_by(modules))
        }
        environment.update(own)
        with ThreadPoolExecutor(NURSERIES) as pool:
            missing = range(NURSERIES - len(group))
            new = [pool.submit(Nursery, environment, modules) for _ in missing]
        group += [one.result() for one in new if one.exception() is None]
        for one in new:
            one.result()

    def close(self) -> None:
        """End the nurseries. Ranks that still run go on."""
        if os.getpid() == self._owner:
            for group in self._started.values():
                for nursery in group:
                    nursery.close()
            self._started.clear()


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """What is imported before ranks are forked that run a function of this module.

    NumPy, and the frameworks that it imports by itself or by way of another one of rank programs.
    """
    found = dict.fromkeys(NUMPY)
    for value in list(vars(sys.modules[module]).values()):
        name = value.__name__ if isinstance(value, ModuleType) else value.__class__.__module__
        if callable(value) and not isinstance(value, ModuleType):
            name = getattr(value, "__module__", None) or ""
        framework = name.removeprefix("hvdtune.").partition(".")[0]
        found |= dict.fromkeys(FRAMEWORKS.get(framework, ()))
        if name != module and name.startswith(TEST_MODULES):
            found |= dict.fromkeys(imports_of(name))
    frameworks = sorted(found.keys() - NUMPY)
    return (*NUMPY, *frameworks)


def variables(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> Variables:
    """The variables in it whose names begin so."""
    return tuple(sorted(pair for pair in environment.items() if pair[0].startswith(prefixes)))


def start_up(environment: Mapping[str, str], but: tuple[str, ...] = ()) -> Variables:
    """The variables in it that a process or a library reads while it starts, without ``but``."""
    found = variables(environment, START_UP)
    return tuple(pair for pair in found if not pair[0].startswith(but))


def _read_by(modules: Sequence[str]) -> tuple[str, ...]:
    """The beginnings of the names of what these modules read, of which a job may have its own."""
    return OF_FRAMEWORKS if READERS & {*modules} else ()


def _readable(descriptor: int, timeout: float | None) -> bool:
    """Whether there is something to read within ``timeout`` seconds (None: for ever)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else 1000 * timeout))
