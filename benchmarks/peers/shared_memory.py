"""Finds the files that a job has made in shared memory, to remove them if the job is killed.

An MPI removes its files when it ends in order; MPICH leaves one if its ranks are killed. The names
say nothing about the job, and other jobs may run meanwhile. So a file counts as this job's only if
a process of this job was seen to hold it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")

#: If no process of the job holds a file when it is first seen, one may be about to open it; after
#: this many looks it belongs to another job. Each look reads all of the job's mappings.
_LOOKS = 3


class SharedMemory:
    """The files of one job in shared memory that are newer than this object."""

    def __init__(self) -> None:
        self._before = set(_files())
        self._looks: dict[tuple[str, int], int] = {}
        self._mine: set[tuple[str, int]] = set()

    def look(self, job: Callable[[], Iterable[int]], *, last: bool = False) -> None:
        """Find out which new files the processes `job()` hold; cheap if nothing is new.

        `last`: these processes are about to be killed, so every new file is checked.
        """
        new = []
        for file in _files():
            looks = self._looks.get(file, 0)
            if file in self._before or file in self._mine or (looks >= _LOOKS and not last):
                continue
            self._looks[file] = looks + 1
            new.append(file)
        if not new:
            return
        held = {inode for pid in job() for inode in _held(pid)}
        self._mine.update(file for file in new if file[1] in held)

    def remove(self) -> None:
        """Remove the job's files that are still there. Its processes must have ended."""
        for file in self._mine.intersection(_files()):
            with contextlib.suppress(OSError):
                (FOLDER / file[0]).unlink()


def _files() -> list[tuple[str, int]]:
    """(name, inode) of every file: a name may be used again, but not with the same inode."""
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        return [(entry.name, entry.inode()) for entry in entries]
    return []


def _held(pid: int) -> set[int]:
    """Inodes of the files below FOLDER that a process has mapped or open."""
    found = set()
    process = Path("/proc", str(pid))
    prefix = f"{FOLDER}/"
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text().splitlines():
            # address permissions offset device inode path
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5].startswith(prefix):
                found.add(int(parts[4]))
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(prefix):
                    found.add(link.stat().st_ino)
    return found
