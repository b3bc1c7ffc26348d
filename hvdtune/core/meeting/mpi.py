"""MPI itself: a broadcast in a duplicate of MPI_COMM_WORLD.

If the script has not started MPI, this module does, which takes a second, and ends it when Python
ends. Every wait except MPI_Init's own is a polling loop, so that it can end with an error message.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from typing import Any

from hvdtune.core.libraries import mpi as mpi_library
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate

_SUCCESS = 0
_LENGTH = 1024  # of the message: the receivers do not know how long the text is
_SERIALIZED, _MULTIPLE = 2, 3
_PAUSE = 0.001
_FINALIZE_SECONDS = 10.0
# MPICH's handles and its MPI_STATUS_IGNORE; Open MPI's handles are addresses in the library.
_MPICH_WORLD, _MPICH_BYTE, _MPICH_IGNORE = 0x44000000, 0x4C00010D, 1


def absence_of_running(seeker: Seeker) -> str:
    """Why MPI cannot be used at once: it does not run in this process; "" if it does."""
    return "" if running_library() else "MPI is not initialised in this process"


def absence(seeker: Seeker) -> str:
    """Why this process cannot start MPI; "" if it can."""
    if running_library():
        return ""
    if mpi_library.launcher_family(seeker.environ) is None:
        return "no mpirun has started the processes"
    try:
        path = mpi_library.choose(seeker.environ, seeker.mpi_library, seeker.size).path
    except ValueError as error:
        return str(error)
    return "MPI is finalised in this process" if _state(path)[1] else ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text, given as `text` on rank 0."""
    library = running_library()
    if library:
        return _Mpi(library, seeker).broadcast(text)
    path = mpi_library.choose(seeker.environ, seeker.mpi_library, seeker.size).path
    mpi = _Mpi(path, seeker)
    mpi.begin()
    return mpi.broadcast(text)


def running_library() -> str:
    """The libmpi that is initialised and not finalised in this process; "" if none is."""
    for path in mpi_library.loaded():
        if _state(path) == (True, False):
            return path
    return ""


def was_begun() -> bool:
    """Whether any libmpi has been initialised in this process."""
    return any(_state(path)[0] for path in mpi_library.loaded())


def _state(path: str) -> tuple[bool, bool]:
    """Whether a library that may be loaded is initialised, and whether it is finalised."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False, False
    begun, ended = ctypes.c_int(), ctypes.c_int()
    library.MPI_Initialized(ctypes.byref(begun))
    library.MPI_Finalized(ctypes.byref(ended))
    return bool(begun.value), bool(ended.value)


class _Mpi:
    """A loaded libmpi."""

    def __init__(self, path: str, seeker: Seeker) -> None:
        try:
            # Global, because Open MPI's plugins look for its symbols.
            self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        except OSError as error:
            raise Failed(f"{path} cannot be loaded: {error}") from None
        self._path = path
        self._seeker = seeker
        self._handle: Any = ctypes.c_int
        self._world: Any = ctypes.c_int(_MPICH_WORLD)
        self._byte: Any = ctypes.c_int(_MPICH_BYTE)
        self._ignore: Any = ctypes.c_void_p(_MPICH_IGNORE)
        if mpi_library.family_of(path) == mpi_library.OPEN_MPI:
            self._handle = ctypes.c_void_p
            self._world = self._object("ompi_mpi_comm_world")
            self._byte = self._object("ompi_mpi_byte")
            self._ignore = ctypes.c_void_p(None)

    def begin(self) -> None:
        """MPI_Init, on a thread of its own: nothing ends it if another process never comes."""
        wanted = _MULTIPLE if self._seeker.mpi_multiple else _SERIALIZED
        codes: list[int] = []

        def initialise() -> None:
            granted = ctypes.c_int()
            codes.append(self._library.MPI_Init_thread(None, None, wanted, ctypes.byref(granted)))

        thread = threading.Thread(target=initialise, name="hvdtune MPI_Init", daemon=True)
        thread.start()
        thread.join(self._seeker.seconds_left())
        if thread.is_alive():
            raise TooLate("MPI_Init did not return")
        if codes != [_SUCCESS]:
            raise Failed(f"MPI_Init gave {codes}")
        atexit.register(self._finalize, os.getpid())

    def broadcast(self, text: str) -> str:
        """Rank 0's text, in all processes of MPI_COMM_WORLD."""
        rank, size = ctypes.c_int(), ctypes.c_int()
        self._check("MPI_Comm_rank", self._world, ctypes.byref(rank))
        self._check("MPI_Comm_size", self._world, ctypes.byref(size))
        seeker = self._seeker
        if (rank.value, size.value) != (seeker.rank, seeker.size):
            raise Failed(
                f"this process is rank {seeker.rank} of {seeker.size} for its launcher, but rank "
                f"{rank.value} of {size.value} for {self._path}"
            )
        own, request = self._handle(), self._handle()
        self._check("MPI_Comm_idup", self._world, ctypes.byref(own), ctypes.byref(request))
        self._wait(request)
        buffer = ctypes.create_string_buffer(text.encode() if seeker.tells else b"", _LENGTH)
        self._check(
            "MPI_Ibcast", buffer, _LENGTH, self._byte, seeker.root, own, ctypes.byref(request)
        )
        self._wait(request)
        # The duplicate is kept: all processes would have to meet again to free it.
        return buffer.value.decode()

    def _wait(self, request: Any) -> None:
        done = ctypes.c_int()
        while True:
            self._check("MPI_Test", ctypes.byref(request), ctypes.byref(done), self._ignore)
            if done.value:
                return
            if self._seeker.seconds_left() <= 0:
                raise TooLate("not all processes have come")
            time.sleep(_PAUSE)

    def _check(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise Failed(f"{name} gave {code}")

    def _object(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, name)))

    def _finalize(self, process: int) -> None:
        """A process that fails leaves MPI silently: its mpirun then ends the others."""
        failed = getattr(sys, "last_type", None) is not None
        if os.getpid() != process or failed or _state(self._path) != (True, False):
            return
        if mpi_library.family_of(self._path) == mpi_library.OPEN_MPI:
            self._library.MPI_Finalize()
            return
        # MPICH before 4.2 sometimes hangs there, between hosts.
        thread = threading.Thread(target=self._library.MPI_Finalize, daemon=True)
        thread.start()
        thread.join(_FINALIZE_SECONDS)
        if thread.is_alive():
            # Destructors of libraries that the thread is still in must not run.
            libc = ctypes.CDLL(None)
            libc.on_exit(libc._exit, None)
