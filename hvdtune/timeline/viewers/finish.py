"""Ends a recording: joins the ranks' files into rank 0's, and adds what trace viewers show.

`python -m hvdtune.timeline.viewers.finish t.json` runs when a job is over; a second run does
nothing. The recording is never at risk: the joined file replaces rank 0's when it is complete and
on the disk, and only then are the other ranks' files removed. If anything fails, all files stay as
they were.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from hvdtune.timeline.record.capture_file import Budget, CaptureFile, read_capture_file
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import Identity
from hvdtune.timeline.record.load import assemble, read_sibling, siblings
from hvdtune.timeline.viewers.joined_file import mode_of, records_of, remove_parts, write_trace
from hvdtune.timeline.viewers.view import MOST_EVENTS, view

#: How long to wait for ranks that are still writing when rank 0 is done, seconds.
PATIENCE = 5.0
#: A rank on another host counts as ended if it has not written for this long, seconds.
SILENT_FOR = 60.0


def finish(path: str | Path, patience: float = PATIENCE, most_events: int = MOST_EVENTS) -> bool:
    """Join `path` (rank 0's file, or the name with .gz that it should get) with its siblings.

    Returns whether there was something to do. A sibling that may still be written to is also
    joined, but stays beside the result; a second run adds the rest of it. Raises TimelineError (a
    sentence) if `path` is not a recording or is still being written to, OSError if a file cannot be
    read or written; then nothing has changed.
    """
    result = Path(path)
    source = result
    if result.name.endswith(".gz"):
        plain = result.with_name(result.name.removesuffix(".gz"))
        source = plain if plain.exists() else result
    with _locked(source):
        return _finish(source, result, patience, most_events)


def _finish(source: Path, result: Path, patience: float, most_events: int) -> bool:
    first, others, problems = _read(source, patience)
    if first.finished and not others and source == result:
        return False
    if not first.finished and _may_be_written(first):
        who = next(iter(first.ranks.values())).identity
        raise TimelineError(f"{source} is still being recorded, by process {who.pid} on {who.host}")
    done = [file for file in others if not _may_be_written(file)]
    superseded = {rank for file in others for rank in file.ranks}
    recording = assemble([first, *others], str(source), problems=problems)
    shown = view(recording, most_events=most_events)
    kept = [rank for rank in first.ranks if rank not in superseded]
    parts = [records_of(source, kept)]
    parts += [records_of(file.path, list(file.ranks)) for file in others]
    remove_parts(result)
    write_trace(result, itertools.chain(*parts, shown.lines), mode_of(source))
    for file in done:
        _remove(file.path)
    if source != result:
        _remove(source)
    for problem in recording.problems:
        print(f"hvdtune: {source}: {problem}", file=sys.stderr)
    return True


def _read(source: Path, patience: float) -> tuple[CaptureFile, list[CaptureFile], list[str]]:
    """Rank 0's file and its siblings, once all have ended or `patience` is over."""
    deadline = time.monotonic() + patience
    while True:
        budget = Budget()
        problems: list[str] = []
        first = read_capture_file(source, budget)
        found = [read_sibling(one, first, budget, problems) for one in siblings(source)]
        others = [one for one in found if one is not None]
        running = [one for one in others if _may_be_written(one)]
        if not running or time.monotonic() >= deadline:
            return first, others, problems
        time.sleep(0.2)


def _may_be_written(file: CaptureFile) -> bool:
    """Whether any of its ranks has not ended and may be alive."""
    return any(
        not (one.complete or one.cut_off) and _alive(one.identity, one.path)
        for one in file.ranks.values()
    )


def _alive(who: Identity, path: Path) -> bool:
    if not _is_here(who):
        try:
            return time.time() - os.stat(path).st_mtime < SILENT_FOR
        except OSError:
            return False
    try:
        os.kill(who.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return who.pid > 0 and not _has_ended(who.pid)


def _is_here(who: Identity) -> bool:
    """Whether this host recorded it. Different hosts may have the same name for themselves."""
    here = socket.gethostname()
    return who.host == here or (who.node == here and _leads_here(who.host))


def _leads_here(host: str) -> bool:
    """Whether a name or address is one of this host's."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as tried:
            tried.bind(address)
            return True
    return False


def _has_ended(pid: int) -> bool:
    """Whether a process has ended and only waits for its parent to read its status."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] in (["Z"], ["X"])


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        print(f"hvdtune: {path} is joined, but cannot be removed: {error}", file=sys.stderr)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; the next one finds the result of the one before."""
    while True:
        file = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            # The file may have been replaced, or removed, while we waited.
            try:
                same = os.path.samestat(os.fstat(file), os.stat(path))
            except FileNotFoundError:
                same = False
            if same:
                yield
                return
        finally:
            os.close(file)
        if not path.exists():
            # Compressed meanwhile: nothing is left to do.
            raise TimelineError(f"{path} is gone: another process has already joined the files")


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Finish the file named on the command line; returns 0, or 1 or 2 after a line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1:
        print("usage: python -m hvdtune.timeline.viewers.finish FILE", file=sys.stderr)
        return 2
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        finish(words[0])
    except KeyboardInterrupt:
        print("it was interrupted", file=sys.stderr)
        return 1
    except (TimelineError, OSError, MemoryError) as error:
        gone = isinstance(error, FileNotFoundError)
        fate = "is gone" if gone else f"stays as it was recorded: {error}"
        print(f"hvdtune: {words[0]} {fate}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
