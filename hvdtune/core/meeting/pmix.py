"""PMIx: the server that Open MPI's mpirun, PRRTE and `srun --mpi=pmix` run on each host.

The MPI library also starts PMIx, in MPI_Init, which a script may call later. With servers before
PMIx 5 (Open MPI 4) that works if the process itself has started PMIx and stays in it; a server
gives a rank's local number only once. With later servers (Open MPI 5) the process must not have
started PMIx, but a child of it may have, if it stays in PMIx. If the child, or the process, left
PMIx earlier, MPI_Init would fail or hang.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

from hvdtune.core.libraries.compiled import compiled
from hvdtune.core.meeting import mpi
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate

_NAME = "libpmix.so.2"
# Ours (native/pmix): the calls of libpmix, and a program that makes them for its parent.
_CLIENT, _PROGRAM = "_pmix.so", "pmix_program"
_LONGEST = 4096  # bytes of an answer
_SERVER = "PMIX_SERVER_URI"
_FIRST_WITH_CHILD = 5  # of PMIx's versions
_END_SECONDS = 5.0


class _Session(Protocol):
    def ask(self, question: str, seconds: float) -> str: ...

    def end(self) -> None:
        """Sign off."""

    def outlive(self) -> None:
        """Sign off when this process has ended, if another process can."""

    def fail(self) -> None:
        """Leave without signing off, because the process has failed."""


_session: _Session | None = None


def absence(seeker: Seeker) -> str:
    """Why this process cannot ask a PMIx server; "" if it can."""
    environ = seeker.environ
    told = environ.get("PMIX_RANK", "")
    if not told or not any(name.startswith(_SERVER) for name in environ):
        return "the launcher runs no PMIx server"
    if told != str(seeker.rank):
        return f"PMIX_RANK={told} is not this process's rank, {seeker.rank}"
    if not (compiled(_CLIENT) and compiled(_PROGRAM)):
        return f"this hvdtune was built without {_CLIENT} and {_PROGRAM}"
    return ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text, given as `text` on rank 0."""
    global _session
    question = f"{seeker.root} hvdtune.{seeker.number} {text}"
    reasons: list[str] = []
    for library in libraries(seeker.environ) if _session is None else [""]:
        session = _session or _begin(library, seeker.environ)
        word, _, rest = session.ask(question, seeker.seconds_left()).partition(" ")
        if word == "absent":
            reasons.append(f"{library}: {rest}")
            session.end()
            _session = None
            continue
        if _session is None:
            _session = session
            atexit.register(_leave, os.getpid())
        if word != "told":
            raise Failed(rest)
        return rest
    raise Failed("; ".join(reasons))


def _begin(library: str, environ: Mapping[str, str]) -> _Session:
    version = environ.get("PMIX_VERSION", "").partition(".")[0]
    with_child = version.isdecimal() and int(version) >= _FIRST_WITH_CHILD
    return _Child(library, environ) if with_child else _Thread(library)


def _leave(process: int) -> None:
    """Sign off, unless the script has failed: its mpirun then ends the others."""
    if _session is None or os.getpid() != process:
        return
    if getattr(sys, "last_type", None) is None:
        # A running MPI is finalised later, and may wait for ever if its rank has signed off before.
        if mpi.running_library():
            _session.outlive()
        else:
            _session.end()
    else:
        _session.fail()


class _Thread:
    """PMIx in this process, on a thread of its own: nothing ends a wait in it."""

    def __init__(self, library: str) -> None:
        import queue  # only here: a child does not need it

        self._questions: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        arguments = (library,)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="hvdtune PMIx", daemon=True
        )
        self._thread.start()

    def _run(self, library: str) -> None:
        try:
            client = ctypes.CDLL(compiled(_CLIENT))
        except OSError as error:
            self._answers.put(f"absent {error}")
            return
        client.hvdtune_pmix_begin.restype = ctypes.c_bool
        answer = ctypes.create_string_buffer(_LONGEST)
        size = ctypes.c_size_t(_LONGEST)
        if not client.hvdtune_pmix_begin(library.encode(), answer, size):
            self._answers.put(f"absent {answer.value.decode(errors='replace')}")
            return
        while question := self._questions.get():
            root, key, text = question.encode().split(b" ")
            client.hvdtune_pmix_answer(ctypes.c_uint32(int(root)), key, text, answer, size)
            self._answers.put(answer.value.decode(errors="replace"))
        client.hvdtune_pmix_end()

    def ask(self, question: str, seconds: float) -> str:
        from queue import Empty

        self._questions.put(question)
        try:
            return self._answers.get(timeout=seconds)
        except Empty:
            raise TooLate("not all processes have come") from None

    def end(self) -> None:
        self._questions.put("")
        self._thread.join(_END_SECONDS)

    def outlive(self) -> None:
        self.end()

    def fail(self) -> None:
        pass  # the end of this process is enough


class _Child:
    """PMIx in a child of this process."""

    def __init__(self, library: str, environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                [compiled(_PROGRAM), library],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the rank decides what Ctrl-C means
            )
        except OSError as error:
            raise Failed(f"{compiled(_PROGRAM)}: {error.strerror}") from None
        assert self._process.stdin is not None
        # Forks, such as a DataLoader's workers, may outlive this process: the child must notice
        # that this process ends.
        os.register_at_fork(after_in_child=self._process.stdin.close)

    def ask(self, question: str, seconds: float) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{question}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its answer, read below, says why
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            self._process.kill()
            self._process.wait()
            raise TooLate("not all processes have come")
        said = self._process.stdout.readline().decode(errors="replace").rstrip("\n")
        return said or "absent its process has died"

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def outlive(self) -> None:
        # The child signs off at the end of its input, which only the end of this process closes.
        assert self._process.stdin is not None
        os.dup(self._process.stdin.fileno())

    def fail(self) -> None:
        # At the end of its input the child would sign off, as for a rank that ends with os._exit.
        self._process.kill()
        self._process.wait()


def libraries(environ: Mapping[str, str]) -> Iterator[str]:
    """Where libpmix may be: beside the launcher's MPI first, the system's last."""
    seen: set[str] = set()
    for path in _places(environ):
        file = os.path.realpath(path)
        if file not in seen and os.path.isfile(file):
            seen.add(file)
            yield path
    yield _NAME


def _places(environ: Mapping[str, str]) -> Iterator[str]:
    roots = [environ.get("OPAL_PREFIX", ""), environ.get("PMIX_PREFIX", "")]
    mpirun = shutil.which("mpirun", path=environ.get("PATH"))
    if mpirun:
        roots.append(os.path.dirname(os.path.dirname(os.path.realpath(mpirun))))
    roots.append(sys.prefix)
    for root in filter(None, dict.fromkeys(roots)):
        for folder in ("lib/openmpi", "lib", "lib64/openmpi", "lib64"):
            yield os.path.join(root, folder, _NAME)
        # Not earlier: the query takes milliseconds.
        multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
        yield os.path.join(root, "lib", multiarch, "pmix2/lib", _NAME)
