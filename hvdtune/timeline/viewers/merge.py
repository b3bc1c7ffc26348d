"""Joins several hosts' files, and PyTorch's profiles of the run, into one on one clock."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hvdtune.timeline.record.capture_file import (
    Budget,
    CaptureFile,
    as_recorded,
    is_capture,
    read_capture_file,
)
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.record.load import assemble, read_recording, read_sibling, siblings
from hvdtune.timeline.viewers import kineto
from hvdtune.timeline.viewers.finish import finish
from hvdtune.timeline.viewers.joined_file import records_of, write_trace
from hvdtune.timeline.viewers.view import View, view
from hvdtune.timeline.viewers.window import MOST_EVENTS_ASKED_FOR, extent


def merge(paths: Sequence[str | Path], out: str | Path | None = None) -> str:
    """Write `out`: the recordings of all ranks in `paths`, events for viewers, and profiles.

    The other ranks' files beside rank 0's need not be given. Without `out`, a single recording is
    finished in place. Returns a sentence about what was written. Raises TimelineError if a file is
    neither a recording nor a profile, is of another job, cannot be aligned, or has no time in
    common with the others; OSError if a file cannot be read or written. Then nothing is written.
    """
    captures = [Path(path) for path in paths if is_capture(path)]
    profiles = [Path(path) for path in paths if Path(path) not in captures]
    for path in profiles:
        if not as_recorded(path).stat().st_size:
            raise TimelineError(f"{path} is empty: nothing was recorded")
        if not kineto.is_kineto(path):
            raise TimelineError(
                f"{path} is neither a recording made by hvdtune nor a profile of PyTorch "
                "(torch.profiler's export_chrome_trace)"
            )
    if not captures:
        raise TimelineError(
            "none of the files is a recording made by hvdtune: there is nothing to join"
        )
    if out is None:
        if len(paths) > 1:
            raise TimelineError("several files are joined into a new one: name it with -o OUT.json")
        return f"{captures[0]}: " + ("joined" if finish(captures[0]) else "was joined already")
    files, problems = _read(captures)
    recording = assemble(files, str(captures[0]), strict=True, problems=problems)
    span = extent(recording)
    placed = [kineto.place(kineto.read_kineto(path), recording, span) for path in profiles]
    shown = _view(recording, placed)
    parts = [records_of(file.path, list(file.ranks)) for file in files]
    parts.append(iter(shown.lines))
    flow = 1 << 40
    for one in placed:
        parts.append(kineto.lines(one, shown.origin, flow))
        flow += len(one.trace.events)
    write_trace(Path(out), itertools.chain(*parts))
    return _told(out, recording, placed, shown)


def write_view(path: str | Path, out: str | Path, steps: tuple[int, int] | None) -> str:
    """Write only the events for viewers of `steps` (first, after the last); a sentence."""
    recording = read_recording(path)
    shown = view(recording, steps)
    write_trace(Path(out), shown.lines)
    return f"{out}: {sum(shown.counts.values())} events. {shown.window.sentence}"


def _read(captures: list[Path]) -> tuple[list[CaptureFile], list[str]]:
    """The files, the others of their jobs beside them, and sentences about those left out.

    A file beside a joined one has more of its ranks, which had not ended when they were joined.
    """
    budget = Budget()
    problems: list[str] = []
    given = {os.path.realpath(path): path for path in captures}
    files: list[CaptureFile] = []
    beside: dict[str, CaptureFile] = {}
    for path in given.values():
        file = read_capture_file(path, budget)
        newer: set[int] = set()
        for sibling in siblings(path):
            name = os.path.realpath(sibling)
            other = None if name in given else read_sibling(sibling, file, budget, problems)
            if other is not None:
                beside[name] = other
                newer.update(other.ranks if file.finished else ())
        kept = {rank: one for rank, one in file.ranks.items() if rank not in newer}
        if kept:
            files.append(replace(file, ranks=kept))
    return [*files, *beside.values()], problems


def _view(recording: Recording, placed: list[kineto.Placed]) -> View:
    if not placed:
        return view(recording)
    around = min(one.begin for one in placed), max(one.end for one in placed)
    count = sum(len(one.trace.events) for one in placed)
    if count > MOST_EVENTS_ASKED_FOR:
        raise TimelineError(
            f"the profiles have {count} events, and {MOST_EVENTS_ASKED_FOR} is the most that "
            "viewers can take: profile fewer steps"
        )
    return view(recording, around=around)


def _told(out: str | Path, recording: Recording, placed: list[kineto.Placed], shown: View) -> str:
    profiles = f" and {len(placed)} profiles" if placed else ""
    sentences = [
        f"{out}: {len(recording.ranks)} of {recording.size} ranks{profiles}, their clocks known "
        f"to ± {recording.clock_bound_ns / 1000:.0f} us.",
        shown.window.sentence,
        *recording.problems,
        *(f"{one.trace.path}: {problem}" for one in placed for problem in one.trace.problems),
    ]
    return "\n".join(sentences)
