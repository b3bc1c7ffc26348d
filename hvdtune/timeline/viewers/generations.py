"""An elastic job for trace viewers: the recordings of its generations, one after the other.

Each generation has its own ranks and clock. Here each process of the job is one process of the
viewer for its whole life, whatever its ranks were, and all times are on the clock of the first
generation's rank 0.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdtune.timeline.record.capture_file import VIEW
from hvdtune.timeline.record.clock import SAME_CLOCK_NS
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import NONE, Identity, Mark, Recording
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.viewers.joined_file import write_trace
from hvdtune.timeline.viewers.trace_events import QUANTUM_NS
from hvdtune.timeline.viewers.view import View, view
from hvdtune.timeline.viewers.window import MOST_EVENTS

#: Each generation's arrows are numbered from a multiple of this.
_FLOWS = 1 << 40
_JOB = re.compile(r"(?P<job>.+)-(?P<generation>[0-9]{1,9})(/.*)?")


class _Generation(NamedTuple):
    number: int
    recording: Recording
    view: View
    offset: int  # to the first one's clock, ns
    same_clock: bool  # else only the hosts' times of day connect them

    @property
    def rank0(self) -> Identity:
        return self.recording.ranks[0].identity

    def began(self) -> tuple[int, str]:
        """When it had formed, ns of its rank 0's clock, and why, in words.

        All ranks record this, because one that was killed may not have written it yet.
        """
        for one in self.recording.ranks.values():
            for mark in one.marks[one.marks["kind"] == Mark.USER]:
                if mark["value"] == self.number and mark["text"] != NONE:
                    return int(mark["time"]), one.texts[mark["text"]]
        return self.view.origin, ""


def write_generations(paths: Sequence[str | Path], out: str | Path) -> str:
    """Write an elastic job's events for viewers as one array; returns sentences about it.

    `paths`: rank 0's files of its generations, in any order. An instant event GENERATION across all
    processes says when each generation formed and why; in a long job, only the last steps of each
    are shown. Raises TimelineError if the files are not generations of one elastic job, or a
    generation is given twice; OSError if a file cannot be read or written. Then nothing is written.
    """
    generations = _read(paths)
    rows: dict[tuple[str, int], int] = {}
    for one in generations:
        for rank in sorted(one.recording.ranks):
            rows.setdefault(_process(one, rank), len(rows))
    zero = min(one.view.origin + one.offset for one in generations)
    parts = [_events(one, rows, zero) for one in generations]
    head = [*_heads(generations, rows), *_lanes(generations, rows)]
    merged = heapq.merge(*parts, key=lambda event: event["ts"])
    write_trace(Path(out), map(_line, [*head, *merged]))
    return _told(out, generations)


def _read(paths: Sequence[str | Path]) -> list[_Generation]:
    found: dict[int, tuple[Recording, str]] = {}
    job = ""
    for path in paths:
        recording = read_recording(path)
        if 0 not in recording.ranks:
            raise TimelineError(f"{path} has no records of rank 0, whose clock is needed")
        named = _JOB.fullmatch(recording.ranks[0].identity.job)
        if named is None or (job and named["job"] != job):
            raise TimelineError(
                f"{path} is no generation of {f'job {job!r}' if job else 'an elastic job'}: it is "
                f"of job {recording.ranks[0].identity.job!r}"
            )
        job, number = named["job"], int(named["generation"])
        if number in found:
            raise TimelineError(
                f"{found[number][1]} and {path} are both of generation {number}: give each once"
            )
        found[number] = recording, str(path)
    first = found[min(found)][0].ranks[0].identity
    result = []
    for number, (recording, _) in sorted(found.items()):
        shown = view(recording, most_events=MOST_EVENTS // len(found))
        offset, same = _offset(first, recording.ranks[0].identity)
        result.append(_Generation(number, recording, shown, offset, same))
    return result


def _offset(first: Identity, other: Identity) -> tuple[int, bool]:
    """From the other's clock to the first one's, ns, and whether they are the same clock."""
    passed = other.started_ns - first.started_ns
    offset = 1000 * (other.started_wall_us - first.started_wall_us) - passed
    if first.host == other.host and abs(offset) < SAME_CLOCK_NS:
        return 0, True
    return offset, False


def _process(one: _Generation, rank: int) -> tuple[str, int]:
    who = one.recording.ranks[rank].identity
    return who.host, who.pid


def _parsed(one: _Generation) -> Iterator[dict[str, Any]]:
    return map(json.loads, one.view.lines)


def _metadata(one: _Generation) -> Iterator[dict[str, Any]]:
    """The metadata at the beginning of a view."""
    return itertools.takewhile(lambda event: event["ph"] == "M", _parsed(one))


def _events(
    one: _Generation, rows: dict[tuple[str, int], int], zero: int
) -> Iterator[dict[str, Any]]:
    """The events that are not metadata, in order of time."""
    shift = (one.view.origin + one.offset - zero) // QUANTUM_NS / 8
    began, text = one.began()
    moment = {
        "ph": "i", "ts": max(0, began + one.offset - zero) // QUANTUM_NS / 8,
        "pid": rows[_process(one, 0)], "tid": 1, "s": "g", "name": f"GENERATION {one.number}",
        "args": {"text": text},
    }  # fmt: skip
    told = False
    for event in itertools.dropwhile(lambda event: event["ph"] == "M", _parsed(one)):
        event["ts"] += shift
        event["pid"] = rows[_process(one, event["pid"])]
        if "id" in event:
            event["id"] += one.number * _FLOWS
        if not told and event["ts"] >= moment["ts"]:
            told = True
            yield moment
        yield event
    if not told:
        yield moment


def _heads(
    generations: Sequence[_Generation], rows: dict[tuple[str, int], int]
) -> Iterator[dict[str, Any]]:
    """What the file shows, and the names of the processes with their ranks one after another."""
    yield next(event for event in _metadata(generations[0]) if event["name"] == VIEW)
    for (host, pid), row in rows.items():
        ranks: list[int] = []
        for one in generations:
            had = [rank for rank in one.recording.ranks if _process(one, rank) == (host, pid)]
            ranks += [rank for rank in had if ranks[-1:] != [rank]]
        name = f"rank {' → '.join(map(str, ranks))} · {host} · pid {pid}"
        yield {"name": "process_name", "ph": "M", "pid": row, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": row, "args": {"sort_index": row}}


def _lanes(
    generations: Sequence[_Generation], rows: dict[tuple[str, int], int]
) -> Iterator[dict[str, Any]]:
    """The names of the processes' lanes, each once."""
    known = set()
    for one in generations:
        for event in _metadata(one):
            if "tid" in event:
                event["pid"] = rows[_process(one, event["pid"])]
                line = _line(event)
                if line not in known:
                    known.add(line)
                    yield event


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _told(out: str | Path, generations: Sequence[_Generation]) -> str:
    count = sum(sum(one.view.counts.values()) for one in generations)
    numbers = ", ".join(str(one.number) for one in generations)
    sentences = [f"{out}: {count} events of generations {numbers}."]
    other = [str(one.number) for one in generations if not one.same_clock]
    if other:
        sentences.append(
            f"Rank 0 of generation {', '.join(other)} had a different clock from that of "
            f"generation {generations[0].number}: they are compared using the hosts' times of day."
        )
    for one in generations:
        if not one.view.window.whole:
            sentences.append(f"Generation {one.number}: {one.view.window.sentence}")
        sentences += [f"Generation {one.number}: {problem}" for problem in one.recording.problems]
    return "\n".join(sentences)
