"""One file of a capture: from its bytes to the records of the ranks in it, on their own clocks.

Reading is bounded whatever the file contains: lines are read up to LONGEST_LINE, data that is kept
counts against a Budget, and a compressed file may not unpack to more than a recording can.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from hvdtune.timeline.record.events import GZIP_MAGIC, TimelineError, compressed_otherwise
from hvdtune.timeline.record.layout import FORMAT, STREAMS, ClockReading, Identity, MemberList, Name
from hvdtune.timeline.record.tensor_runs import unpack

#: Longer lines are skipped: the recorder's have less than a tenth of it.
LONGEST_LINE = 32 << 20
#: The most memory that a recording may use, bytes.
MOST_BYTES = 2 << 30
#: Ids count from 0 without gaps; one beyond this is damage.
MOST_NAMES = 1 << 20
#: A compressed file unpacks to at most this many times its size plus this many bytes.
MOST_UNPACKED = (200, 64 << 20)
#: The identity is the first event; a file without one in its first bytes is something else.
IDENTITY_WITHIN = 64 << 20
#: Readings of a clock that are kept: one a second for a month.
MOST_READINGS = 3_000_000

_AROUND_EVENT = b" \t\r\n,[]"
VIEW = "hvdtune_view"  # everything after this event was made for viewers


class Budget:
    """Bytes that may still be kept."""

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self.limit = self.left = limit

    def take(self, count: int, path: Path) -> None:
        """Raises TimelineError once the limit is reached."""
        self.left -= count
        if self.left < 0:
            raise TimelineError(
                f"{path} has more than {self.limit / (1 << 30):.3g} GiB of records, which is the "
                "most that can be read at once; record fewer steps at a time"
            )


@dataclass
class RawRank:
    """What the file has of one rank. `damage`: what was wrong → how often. `rotated`: blocks that
    were dropped to keep the file small. By stream, `missing`: how many records were written to the
    file but are not in it; `begins`: the number of the first record; `ends`: that after the last
    one so far. `cut_off`: why it was not written to its end."""

    identity: Identity
    path: Path
    names: dict[int, Name] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    records: dict[str, bytearray] = field(default_factory=lambda: {s: bytearray() for s in STREAMS})
    clock: list[ClockReading] = field(default_factory=list)
    sets: list[MemberList] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    damage: Counter[str] = field(default_factory=Counter)
    rotated: int = 0
    begins: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    complete: bool = False
    cut_off: str = ""


@dataclass
class CaptureFile:
    """The ranks in a file. `finished`: it is a joined file with events for viewers."""

    path: Path
    ranks: dict[int, RawRank] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    finished: bool = False


def is_capture(path: str | Path) -> bool:
    """Whether the file begins as a capture does; OSError if it cannot be read."""
    lines = Lines(Path(path))
    for count, line in enumerate(lines):
        if any(event.get("name") == "hvdtune_identity" for event in parse(line) or ()):
            return True
        if count == 8:
            break
    return False


def as_recorded(path: Path) -> Path:
    """The file that exists: a job writes t.json.gz as t.json until it has ended."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain if plain.exists() and not path.exists() else path


def read_capture_file(path: str | Path, budget: Budget | None = None) -> CaptureFile:
    """Read one file, plain or gzip, cut off or damaged.

    Faults are counted, or described in `problems`. Raises TimelineError if the file has no
    identity, if a newer hvdtune wrote it in another format, or if it is larger than `budget`;
    OSError if it cannot be read.
    """
    path = Path(path)
    reader = _Reader(CaptureFile(path), budget or Budget())
    lines = Lines(path)
    for line in lines:
        if reader.finished:
            break
        reader.take(line, lines)
    reader.end(lines)
    return reader.file


class Lines:
    """The lines of a file, each bounded. Afterwards `problem` says if it is cut off or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = as_recorded(path)
        self.problem = ""
        self.too_long = 0
        self.read = 0
        self.last = b""

    def __iter__(self) -> Iterator[bytes]:
        size = os.stat(self.path).st_size
        with open(self.path, "rb") as plain:
            begin = plain.read(8)
        packed = begin.startswith(GZIP_MAGIC)
        if (otherwise := compressed_otherwise(begin, self.path)) is not None:
            raise otherwise
        times, more = MOST_UNPACKED
        limit = times * size + more if packed else size + more
        with gzip.open(self.path) if packed else open(self.path, "rb") as opened:
            source = None
            while True:
                try:
                    source = source or _in_utf8(opened)
                    line = source.readline(LONGEST_LINE)
                except EOFError:
                    self.problem = (
                        "the compressed file is cut off; the part that could be unpacked was read"
                    )
                    return
                except (gzip.BadGzipFile, zlib.error) as error:
                    self.problem = (
                        f"the compressed file is damaged ({error}); it was read up to the damage"
                    )
                    return
                if not line:
                    return
                self.read += len(line)
                if self.read > limit:
                    raise TimelineError(
                        f"{self.path} unpacks to more than {times} times its size: this is no "
                        "recording"
                    )
                # A piece of a line that is too long, or the rest after such a piece.
                whole = len(line) < LONGEST_LINE or line.endswith(b"\n")
                continued = bool(self.last) and not self.last.endswith(b"\n")
                self.last = line[-1:]
                if whole and not continued:
                    yield line
                elif not continued:
                    self.too_long += 1


class _Recoded:
    """The lines of a UTF-16 or UTF-32 file, converted to UTF-8."""

    def __init__(self, source: IO[bytes], encoding: str) -> None:
        self.text = io.TextIOWrapper(source, encoding, errors="replace", newline="\n")

    def readline(self, size: int) -> bytes:
        return self.text.readline(size).encode("utf-8", "replace")


def _in_utf8(source: Any) -> Any:
    encoding = json.detect_encoding(source.peek(64)[:64])
    if encoding == "utf-8-sig":
        source.read(len(codecs.BOM_UTF8))
    return source if encoding.startswith("utf-8") else _Recoded(source, encoding)


def parse(line: bytes) -> list[dict[str, Any]] | None:
    """hvdtune's events of a line; None if it is not JSON."""
    text = line.strip(_AROUND_EVENT)
    if b'"hvdtune_' not in text:
        return []
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            found = json.loads(b"[" + text + b"]")
        except (ValueError, RecursionError):
            return None
    return [event for event in found if isinstance(event, dict) and event.get("ph") == "M"]


class _Reader:
    def __init__(self, file: CaptureFile, budget: Budget) -> None:
        self.file = file
        self.budget = budget
        self.damaged = 0
        self.last_was_damaged = False
        self.finished = False
        self.other_jobs: set[str] = set()
        self.current: dict[int, RawRank | None] = {}
        self.take_by_name = {
            "hvdtune_names": self.names,
            "hvdtune_texts": self.texts,
            "hvdtune_block": self.block,
            "hvdtune_clock": self.clock,
            "hvdtune_set": self.process_set,
            "hvdtune_dropped": self.dropped,
            "hvdtune_rotated": self.rotated,
            "hvdtune_end": self.ended,
            "hvdtune_cut_off": self.cut_off,
        }

    def take(self, line: bytes, lines: Lines) -> None:
        events = parse(line)
        self.last_was_damaged = events is None
        if events is None:
            self.damaged += 1
            return
        if not self.current and lines.read > IDENTITY_WITHIN:
            raise self.no_capture()
        for event in events:
            self.event(event)

    def event(self, event: dict[str, Any]) -> None:
        name, rank, args = event.get("name"), event.get("pid"), event.get("args")
        if name == VIEW:
            self.file.finished = self.finished = True
        elif name == "hvdtune_identity":
            self.identity(rank, args)
        elif isinstance(name, str) and name in self.take_by_name:
            state = self.current.get(rank) if isinstance(rank, int) else None
            if state is None:
                return  # a rank whose identity is damaged or of another job: already reported
            try:
                self.take_by_name[name](state, args if isinstance(args, dict) else {})
            except (TypeError, KeyError, OverflowError, ValueError) as error:
                if isinstance(error, TimelineError):
                    raise
                state.damage["events that cannot be understood"] += 1

    def identity(self, rank: Any, args: Any) -> None:
        identity = read_identity(args, self.file.path)
        if identity is None or rank != identity.rank:
            self.file.problems.append(
                f"{self.file.path}: an identity is damaged; later events of its rank are left out."
            )
            if is_count(rank):
                self.current[rank] = None
            return
        known = next(iter(self.file.ranks.values()), None)
        if known is not None and known.identity.job != identity.job:
            self.current[rank] = None
            if identity.job not in self.other_jobs:
                self.other_jobs.add(identity.job)
                self.file.problems.append(
                    f"{self.file.path} has job {identity.job!r} besides {known.identity.job!r}; "
                    "only the first one is read."
                )
            return
        if rank not in self.file.ranks:
            self.file.ranks[rank] = RawRank(identity, self.file.path)
        self.current[rank] = self.file.ranks[rank]

    def names(self, state: RawRank, args: dict[str, Any]) -> None:
        for number, name, process_set, kind, dtype, size in args["names"]:
            right = is_count(number) and number < MOST_NAMES and is_count(size)
            right = right and isinstance(process_set, int) and -1 <= process_set < 1 << 32
            if not (right and all(isinstance(text, str) for text in (name, kind, dtype))):
                state.damage["names that cannot be understood"] += 1
                continue
            self.budget.take(200 + 4 * len(name), self.file.path)
            state.names[number] = Name(name, process_set, kind, dtype, size)

    def texts(self, state: RawRank, args: dict[str, Any]) -> None:
        for number, text in args["texts"]:
            if not (is_count(number) and number < MOST_NAMES and isinstance(text, str)):
                state.damage["texts that cannot be understood"] += 1
                continue
            self.budget.take(200 + 4 * len(text), self.file.path)
            state.texts[number] = text

    def block(self, state: RawRank, args: dict[str, Any]) -> None:
        stream, count, data = args["stream"], args["count"], args["data"]
        dtype = STREAMS.get(stream)
        if dtype is None:
            state.damage[f"blocks of {str(stream)[:40]!r}, which this version does not know,"] += 1
            return
        try:
            records = base64.b64decode(data, validate=False)
        except (binascii.Error, ValueError, TypeError):
            records = b""
        if stream == "tensors" and "runs" in args:
            unpacked = unpack(records, count, args["runs"])
            records = b"" if unpacked is None else unpacked.tobytes()
        if not records or len(records) != count * dtype.itemsize:
            state.damage[f"damaged blocks of {stream}"] += 1
            return
        if not self.follows(state, stream, args.get("first"), count):
            state.damage[f"blocks of {stream} that are in the file twice"] += 1
            return
        self.budget.take(len(records), self.file.path)
        state.records[stream] += records

    def follows(self, state: RawRank, stream: str, first: Any, count: int) -> bool:
        """Whether a block with `first` as its first record was not seen before; counts the records
        that are missing before it."""
        if first is None:
            return True  # recorded by an older hvdtune
        if not is_count(first):
            raise ValueError(first)
        state.begins.setdefault(stream, first)
        known = state.ends.get(stream, first)
        if first < known:
            return False
        if first > known:
            state.missing[stream] += first - known
        state.ends[stream] = first + count
        return True

    def clock(self, state: RawRank, args: dict[str, Any]) -> None:
        values = args["local_ns"], args["offset_ns"], args["bound_ns"]
        right = all(isinstance(v, int) and abs(v) < 1 << 61 for v in values) and values[2] >= 0
        if right and len(state.clock) < MOST_READINGS:
            state.clock.append(ClockReading(*values))
        else:
            state.damage["readings of the clock that cannot be understood"] += 1

    def process_set(self, state: RawRank, args: dict[str, Any]) -> None:
        number, batch, ranks = args["process_set"], args["batch"], args["ranks"]
        size = state.identity.size
        right = is_count(number) and number < 1 << 32 and is_count(batch)
        right = right and 0 < len(ranks) <= size and all(is_count(r) and r < size for r in ranks)
        if not right or len(set(ranks)) < len(ranks):
            state.damage["process sets that cannot be understood"] += 1
            return
        self.budget.take(200 + 32 * len(ranks), self.file.path)
        state.sets.append(MemberList(number, batch, tuple(ranks)))

    def dropped(self, state: RawRank, args: dict[str, Any]) -> None:
        for stream, count in args.items():
            if stream in STREAMS and is_count(count):
                state.dropped[stream] = max(count, state.dropped.get(stream, 0))

    def rotated(self, state: RawRank, args: dict[str, Any]) -> None:
        if is_count(args["blocks"]):
            state.rotated = max(args["blocks"], state.rotated)

    def ended(self, state: RawRank, args: dict[str, Any]) -> None:
        state.complete = True
        for stream, count in args.get("records", {}).items():
            # If the file was kept small, all of a stream may have been dropped.
            known = state.ends.get(stream, count if state.rotated else 0)
            if stream in STREAMS and is_count(count) and count > known:
                state.missing[stream] += count - known
                state.ends[stream] = count

    def cut_off(self, state: RawRank, args: dict[str, Any]) -> None:
        state.cut_off = str(args["reason"])

    def end(self, lines: Lines) -> None:
        """Report the faults of the file as a whole."""
        path = self.file.path
        if lines.read == 0 and not lines.problem:
            raise TimelineError(f"{path} is empty: nothing was recorded")
        if not self.file.ranks:
            raise self.no_capture()
        for state in self.file.ranks.values():
            if not state.rotated:
                state.missing.update(state.begins)
        cut_off = self.last_was_damaged and lines.last != b"\n"
        if cut_off:
            self.damaged -= 1
            self.file.problems.append(f"{path} is cut off; it was read as far as it goes.")
        if lines.problem:
            self.file.problems.append(f"{path}: {lines.problem}.")
        broken = self.damaged + lines.too_long
        if broken:
            self.file.problems.append(f"{path}: {broken} damaged lines were skipped.")

    def no_capture(self) -> TimelineError:
        return TimelineError(
            f"{self.file.path} is not a recording made by hvdtune: it does not say which job "
            "and rank recorded it"
        )


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number that fits into a record."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def read_identity(args: Any, path: Path) -> Identity | None:
    """None if it is damaged; TimelineError if it names a newer format."""
    if not isinstance(args, dict):
        return None
    version = args.get("format", FORMAT)
    if is_count(version) and version > FORMAT:
        raise TimelineError(
            f"{path} was recorded by hvdtune {args.get('version')} in format {version}, and this "
            f"version reads formats up to {FORMAT}: read it with a newer hvdtune"
        )
    known = {one.name: args[one.name] for one in fields(Identity) if one.name in args}
    counts = ("rank", "size", "local_rank", "pid", "format", "started_wall_us", "started_ns",
              "cpus", "local_size")  # fmt: skip
    texts = ("job", "host", "node", "version", "framework")
    try:
        identity = Identity(**known)
    except TypeError:
        return None
    right = all(is_count(getattr(identity, name)) for name in counts)
    right = right and all(isinstance(getattr(identity, name), str) for name in texts)
    right = (
        right and isinstance(identity.settings, dict) and identity.rank < identity.size < 1 << 20
    )
    peak = identity.peak_gbps
    right = right and (peak is None or (isinstance(peak, int | float) and 0 < peak < 1e9))
    return identity if right else None
