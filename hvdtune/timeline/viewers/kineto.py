"""PyTorch profiler traces (Kineto, `export_chrome_trace`), merged with a recording on its clock.

Kineto's times are on the wall clock: `ts` microseconds after `baseTimeNanoseconds` since the epoch.
A recording's identity has the wall clock and CLOCK_MONOTONIC at one moment, so for its host

    rank 0's time = wall − (started_wall − started) + offset(rank)

unless somebody sets the wall clock while the job runs. A trace's rank is in its `distributedInfo`,
or follows from the process id and host that recorded it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtune.timeline.record.clock import Clock, clock_of
from hvdtune.timeline.record.events import GZIP_MAGIC, TimelineError, load_events
from hvdtune.timeline.record.layout import RankRecording, Recording
from hvdtune.timeline.viewers.trace_events import QUANTUM_NS

#: Larger files are refused (unpacked bytes).
MOST_BYTES = 1 << 30
#: The profiler's threads follow the recording's lanes.
FIRST_THREAD = 1000
_PHASES = frozenset("XBEiIsftbneC")
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_HOST = re.compile(r'"host_name"\s*:\s*"([^"]{1,255})"')
_RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*"rank"\s*:\s*(\d{1,7})')


@dataclass
class KinetoTrace:
    """One process's profile. `base_ns`: wall time of ts 0; `begin_ns`, `end_ns`: wall times."""

    path: Path
    events: list[dict[str, Any]]
    problems: list[str]
    base_ns: int
    host: str
    rank: int | None
    begin_ns: int
    end_ns: int


def is_kineto(path: str | Path) -> bool:
    """Whether a file begins as torch.profiler's exports do."""
    text = _head(Path(path))
    return '"baseTimeNanoseconds"' in text or '"schemaVersion"' in text


def read_kineto(path: str | Path) -> KinetoTrace:
    """Read a profile, plain or gzip, cut off or not.

    Raises TimelineError if it is not a profile, is too large, or has no time base (torch before
    2.2).
    """
    path = Path(path)
    _check_size(path)
    head = _head(path)
    events, problems = load_events(path)
    base = _BASE.search(head)
    if base is None:
        raise TimelineError(f"{path} does not say what its times count from: it is not a profile")
    host, rank = _HOST.search(head), _RANK.search(head)
    times = [
        (float(event["ts"]), float(event.get("dur", 0)))
        for event in events
        if event["ph"] == "X" and _number(event.get("ts")) and _number(event.get("dur", 0))
    ]
    if not times:
        raise TimelineError(f"{path} contains no event with a time")
    base_ns = int(base[1])
    begin = base_ns + int(min(ts for ts, _ in times) * 1000)
    end = base_ns + int(max(ts + dur for ts, dur in times) * 1000)
    if not 0 <= begin <= end < 1 << 62:
        raise TimelineError(f"{path} is damaged: its times are not times of day")
    return KinetoTrace(
        path,
        events,
        problems,
        base_ns,
        host[1] if host else "",
        int(rank[1]) if rank else None,
        begin,
        end,
    )


def rank_of(trace: KinetoTrace, recording: Recording) -> RankRecording:
    """The rank whose process was profiled; TimelineError if that is unknown."""
    if trace.rank is not None and trace.rank in recording.ranks:
        return recording.ranks[trace.rank]
    pids = {event.get("pid") for event in trace.events if event["ph"] == "X"}
    found = [
        one
        for one in recording.ranks.values()
        if one.identity.pid in pids and trace.host in ("", one.identity.host, one.identity.node)
    ]
    if len(found) == 1:
        return found[0]
    what = "no rank" if not found else "several ranks"
    raise TimelineError(
        f"{trace.path} (host {trace.host or 'unknown'}) does not belong to {recording.source}: "
        f"{what} of that job had its process id there"
    )


@dataclass(frozen=True)
class Placed:
    """A profile on rank 0's clock. `begin`, `end`: ns of rank 0's clock."""

    trace: KinetoTrace
    rank: int
    shift: int  # rank 0's monotonic time at the epoch of its wall clock, ns
    begin: int
    end: int


def place(trace: KinetoTrace, recording: Recording, extent: tuple[int, int]) -> Placed:
    """Put a profile on a recording's clock; TimelineError if they have no time in common.

    `extent`: begin and end of the recording, ns.
    """
    one = rank_of(trace, recording)
    who = one.identity
    if not who.started_wall_us:
        raise TimelineError(f"{trace.path}: rank {who.rank} did not record the time of day")
    to_local = who.started_ns - who.started_wall_us * 1000
    begin = _on_rank0(one, recording, trace.begin_ns + to_local)
    end = _on_rank0(one, recording, trace.end_ns + to_local)
    if end < extent[0] or begin > extent[1]:
        apart = max(extent[0] - end, begin - extent[1]) / 1e9
        raise TimelineError(
            f"{trace.path} (rank {who.rank}) does not belong to {recording.source}: they have no "
            f"time in common, the profile is {apart:.3g} s "
            + ("earlier" if end < extent[0] else "later")
        )
    # The offset at the middle is enough: clocks hardly drift during a profile.
    middle = (trace.begin_ns + trace.end_ns) // 2
    shift = _on_rank0(one, recording, middle + to_local) - middle
    return Placed(trace, who.rank, shift, begin, end)


def _on_rank0(one: RankRecording, recording: Recording, local: int) -> int:
    import numpy as np

    rank0 = recording.ranks.get(0)
    clock: Clock = clock_of(one.identity, one.clock, rank0.identity if rank0 else one.identity)
    return local + int(clock.offset_at(np.array([local]))[0])


def lines(placed: Placed, origin: int, first_flow: int) -> Iterator[str]:
    """The profile's events as lines of JSON: process = rank, threads after the recording's lanes.

    `origin`: the time of rank 0 that is 0 in the file, ns. Flow ids are numbered from `first_flow`.
    """
    trace = placed.trace
    threads: dict[tuple[str, str], int] = {}
    flows: dict[str, int] = {}
    names = _thread_names(trace.events)

    def q(ts: float) -> int:
        time = trace.base_ns + int(ts // 1) * 1000 + round((ts % 1) * 1000) + placed.shift
        return (time - origin) // QUANTUM_NS

    for event in trace.events:
        if event["ph"] not in _PHASES or not _number(event.get("ts")):
            continue
        thread = str(event.get("pid")), str(event.get("tid"))
        if thread not in threads:
            threads[thread] = FIRST_THREAD + len(threads)
            yield from _name_thread(placed.rank, threads[thread], names, thread)
        copy = {**event, "pid": placed.rank, "tid": threads[thread]}
        begin = q(float(event["ts"]))
        copy["ts"] = begin / 8
        if _number(event.get("dur")):
            copy["dur"] = max(0, q(float(event["ts"]) + float(event["dur"])) - begin) / 8
        if "id" in event:
            key = f"{event.get('cat')} {event['id']}"
            copy["id"] = flows.setdefault(key, first_flow + len(flows))
        yield json.dumps(copy, separators=(",", ":"))


def _thread_names(events: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    names = {}
    for event in events:
        args = event.get("args")
        if event["ph"] == "M" and event.get("name") == "thread_name" and isinstance(args, dict):
            names[str(event.get("pid")), str(event.get("tid"))] = str(args.get("name"))
    return names


def _name_thread(
    rank: int, number: int, names: dict[tuple[str, str], str], thread: tuple[str, str]
) -> Iterator[str]:
    name = names.get(thread) or f"{thread[0]} {thread[1]}"
    for what, args in (
        ("thread_name", {"name": f"profiler: {name}"}),
        ("thread_sort_index", {"sort_index": number}),
    ):
        yield json.dumps({"name": what, "ph": "M", "pid": rank, "tid": number, "args": args})


def _head(path: Path) -> str:
    with open(path, "rb") as file:
        data = file.read(1 << 16)
    if data.startswith(GZIP_MAGIC):
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, 1 << 16)
        except zlib.error:
            return ""
    return data.decode("utf-8", "replace")


def _check_size(path: Path) -> None:
    """Refuse a file that would not fit into memory, before reading it."""
    size = 0
    with open(path, "rb") as plain:
        packed = plain.read(2) == GZIP_MAGIC
    with gzip.open(path) if packed else open(path, "rb") as file:
        try:
            while piece := file.read(1 << 20):
                size += len(piece)
                if size > MOST_BYTES:
                    raise TimelineError(
                        f"{path} is larger than the {MOST_BYTES >> 20} MiB of a profile that can "
                        "be merged: profile fewer steps"
                    )
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return  # cut off or damaged: the reader reports it


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e18 < value < 1e18
