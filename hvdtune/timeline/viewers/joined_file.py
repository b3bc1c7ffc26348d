"""Writes a file with several ranks' recordings and the events for viewers."""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hvdtune.timeline.record.capture_file import VIEW, Lines, parse


def write_trace(path: Path, lines: Iterable[str], mode: int = 0o644) -> None:
    """Write one array, one event per line, compressed if the name ends in .gz.

    `path` is replaced only when everything is on the disk; a failure (OSError) leaves nothing.
    """
    path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as raw:
            with _packed(raw, path) as target:
                for piece in _pieces(lines):
                    target.write(piece)
            raw.flush()
            os.fchmod(raw.fileno(), mode)
            os.fsync(raw.fileno())
        os.replace(beside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename == os.fspath(beside):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def remove_parts(path: Path) -> None:
    """Remove the parts of `path` that killed writers left; no process may be writing it now."""
    path = Path(os.path.realpath(path))
    for name in glob.glob(f".{glob.escape(path.name)}.*.part", root_dir=path.parent):
        with contextlib.suppress(OSError):
            os.unlink(path.parent / name)


def mode_of(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(os.stat(path).st_mode)


def records_of(path: Path, ranks: Sequence[int]) -> Iterator[str]:
    """The recorder's events of these ranks in a file, as lines of JSON, without viewers' events."""
    for line in Lines(path):
        for event in parse(line) or ():
            name = event.get("name")
            if name == VIEW:
                return
            if isinstance(name, str) and name.startswith("hvdtune_") and event.get("pid") in ranks:
                yield json.dumps(event, separators=(",", ":"))


@contextlib.contextmanager
def _packed(raw, path: Path):  # type: ignore[no-untyped-def]
    if not path.name.endswith(".gz"):
        yield raw
        return
    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as target:
        yield target


def _pieces(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines in larger pieces: writing is the main cost here."""
    buffer, size, first = ["[\n"], 0, True
    for line in lines:
        if not first:
            buffer.append(",\n")
        first = False
        buffer.append(line)
        size += len(line)
        if size > 1 << 20:
            yield "".join(buffer).encode()
            buffer, size = [], 0
    yield ("".join(buffer) + "\n]\n").encode()
