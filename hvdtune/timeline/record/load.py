"""From files to a Recording: the ranks' files found, read, checked, and put on one clock."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from hvdtune.timeline import words
from hvdtune.timeline.record.capture_file import Budget, CaptureFile, RawRank, read_capture_file
from hvdtune.timeline.record.clock import SAME, TIMES, Clock, UnalignedError, clock_of, common_bound
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import (
    DTYPES,
    KINDS,
    NONE,
    REASONS,
    STREAMS,
    Mark,
    Name,
    RankRecording,
    Recording,
)

T = TypeVar("T")

LOST = "(name lost)"
#: Times beyond this, 73 years after boot, are impossible.
LAST_TIME = 1 << 61
#: At most this many missing ranks are named; the others are counted.
MOST_NAMED = 8


def read_recording(path: str | Path) -> Recording:
    """Read a job's recording, all its ranks on rank 0's clock.

    `path`: rank 0's file; the other ranks' files of the same job are found beside it if they have
    not been joined into it yet. Any single rank's file is also accepted. Files have the format of
    docs/timeline-format.md, plain or gzip; they may be cut off or damaged, and the job may still
    run.

    Each fault is a sentence of `problems`, with the rank: what is damaged, which ranks are missing,
    and which were left out because their clock cannot be aligned. Raises TimelineError (a
    ValueError) if no rank can be read, OSError if `path` cannot be read.
    """
    budget = Budget()
    first = read_capture_file(path, budget)
    files = [first]
    problems: list[str] = []
    for sibling in siblings(Path(path)):
        other = read_sibling(sibling, first, budget, problems)
        if other is not None:
            files.append(other)
    return assemble(files, str(path), problems=problems)


def read_files(paths: Sequence[str | Path]) -> Recording:
    """Read exactly these files of one job.

    Raises TimelineError if they are of different jobs, if a rank is in two of them, or
    (UnalignedError) if a rank's clock cannot be aligned.
    """
    budget = Budget()
    return assemble([read_capture_file(path, budget) for path in paths], str(paths[0]), strict=True)


def siblings(path: Path) -> list[Path]:
    """The other ranks' files beside rank 0's `path`: t.json → t.rank1.json …, by rank."""
    stem, suffix = split_name(path)
    pattern = re.compile(re.escape(stem) + r"\.rank(\d+)" + re.escape(suffix) + r"(\.gz)?")
    found = []
    for name in glob.glob(glob.escape(stem) + ".rank*", root_dir=path.parent):
        match = pattern.fullmatch(name)
        if match and len(match[1]) < 8:
            found.append((int(match[1]), path.parent / name))
    return [one for _, one in sorted(found)]


def split_name(path: Path) -> tuple[str, str]:
    """`t.json` → ("t", ".json"); rank r's file has `.rank<r>` between them."""
    name = path.name.removesuffix(".gz")
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix) if stem else (name, "")


def read_sibling(
    path: Path, first: CaptureFile, budget: Budget, problems: list[str]
) -> CaptureFile | None:
    """Another rank's file of the same job as `first`; else None, with the reason in `problems`."""
    try:
        other = read_capture_file(path, budget)
    except (TimelineError, OSError) as error:
        if budget.left < 0:
            raise
        problems.append(f"{path} was left out: {error}.")
        return None
    ours, theirs = job_of(first), job_of(other)
    if ours != theirs:
        problems.append(
            f"{path} was left out: it is of job {theirs!r}, and {first.path} of job {ours!r}."
        )
        return None
    return other


def job_of(file: CaptureFile) -> str:
    """The job of a file."""
    return next(iter(file.ranks.values())).identity.job


def assemble(
    files: Sequence[CaptureFile],
    source: str,
    *,
    strict: bool = False,
    problems: Iterable[str] = (),
) -> Recording:
    """Join the files. `strict`: raise if they do not belong together; otherwise leave some out."""
    recording = Recording(source, problems=list(problems))
    raw = _ranks_of(files, strict, recording.problems)
    clocks = _clocks(raw, strict, recording.problems)
    bounds = []
    for rank in sorted(clocks):
        one = _build(raw.pop(rank))
        bounds.append(clocks[rank].bound_over(*_span(one)))
        _move(one, clocks[rank])
        recording.ranks[rank] = one
    recording.problems += _by_problem(recording)
    recording.clock_bound_ns = common_bound(bounds)
    _name_missing(recording)
    return recording


def _by_problem(recording: Recording) -> list[str]:
    """The ranks' faults, each once, with all ranks that have it."""
    found: dict[str, list[int]] = {}
    for rank, one in recording.ranks.items():
        for problem in one.problems:
            found.setdefault(problem, []).append(rank)
    return [f"{words.ranks(which).capitalize()}: {problem}" for problem, which in found.items()]


def _ranks_of(
    files: Sequence[CaptureFile], strict: bool, problems: list[str]
) -> dict[int, RawRank]:
    raw: dict[int, RawRank] = {}
    for file in files:
        problems += file.problems
        if strict and job_of(file) != job_of(files[0]):
            raise TimelineError(
                f"{file.path} is of job {job_of(file)!r}, and {files[0].path} of job "
                f"{job_of(files[0])!r}: they do not belong together"
            )
        for rank, one in file.ranks.items():
            if rank not in raw:
                raw[rank] = one
                continue
            if files[0].finished and raw[rank].path == files[0].path and not strict:
                raw[rank] = one  # joined before this rank was done: its own file has more
                continue
            sentence = f"rank {rank} is in {raw[rank].path} and in {one.path}"
            if strict:
                raise TimelineError(f"{sentence}: give each rank once")
            problems.append(f"{sentence[0].upper()}{sentence[1:]}; the second was left out.")
    return raw


def _clocks(raw: dict[int, RawRank], strict: bool, problems: list[str]) -> dict[int, Clock]:
    """Each rank's clock, without ranks that cannot be aligned: these are named in `problems`."""
    if len(raw) == 1:
        # A single rank needs no other clock, but if rank 0's is known, it is used.
        ((rank, one),) = raw.items()
        try:
            return {rank: clock_of(one.identity, one.clock, None)}
        except UnalignedError:
            return {rank: SAME}
    rank0 = raw[0].identity if 0 in raw else None
    clocks = {}
    refused = []
    for rank, one in sorted(raw.items()):
        try:
            clocks[rank] = clock_of(one.identity, one.clock, rank0)
        except UnalignedError as error:
            if strict:
                raise
            refused.append(str(error))
    if not clocks:
        raise UnalignedError(f"no rank can be aligned with the others: {refused[0]}")
    problems += [f"{sentence[0].upper()}{sentence[1:]}; it was left out." for sentence in refused]
    return clocks


def _build(raw: RawRank) -> RankRecording:
    one = RankRecording(
        raw.identity,
        names=_listed(raw.names, Name(LOST, 0, KINDS[0], DTYPES[0], 0)),
        texts=_listed(raw.texts, "(text lost)"),
        clock=raw.clock,
        sets=raw.sets,
        dropped=dict(+(Counter(raw.dropped) + raw.missing)),
        complete=raw.complete,
        problems=[f"{count} {what} were left out." for what, count in raw.damage.items()],
    )
    for stream, dtype in STREAMS.items():
        # No copy is needed: a bytearray is writable.
        table = np.frombuffer(raw.records.pop(stream), dtype)
        one.streams[stream] = _sound(table, stream, one)
    _mend_references(one)
    if raw.rotated:
        _mend_beginning(one)
    for stream, count in raw.dropped.items():
        if count:
            one.problems.append(f"{count} records of {stream} were lost while recording.")
    for stream, count in raw.missing.items():
        if count:
            one.problems.append(
                f"{count} records of {stream} that were written to the file are missing from it."
            )
    for what, known in (("names", raw.names), ("texts", raw.texts)):
        lost = max(known, default=-1) + 1 - len(known)
        if lost:
            one.problems.append(f"{lost} {what} that were written to the file are missing from it.")
    if raw.cut_off:
        one.cut_off = f"{_when_it_ended(one)}: {raw.cut_off}"
        one.problems.append(f"the recording was cut off {one.cut_off}.")
    elif not one.complete:
        one.problems.append("the recording has no end: the job is still running, or was killed.")
    return one


def _when_it_ended(one: RankRecording) -> str:
    _, last = _span(one)
    steps = one.marks["value"][one.marks["kind"] == int(Mark.STEP)]
    after = f", after step {steps.max()}" if len(steps) else ""
    lasted = last - one.identity.started_ns
    return f"at {lasted / 1e9:.3g} s{after}" if lasted > 0 else "at its beginning"


def _listed(numbered: dict[int, T], lost: T) -> list[T]:
    return [numbered.get(number, lost) for number in range(max(numbered, default=-1) + 1)]


def _sound(table: np.ndarray, stream: str, one: RankRecording) -> np.ndarray:
    """The records in order of time, without impossible ones."""
    right = np.ones(len(table), bool)
    for column in TIMES[stream]:
        right &= (table[column] >= 0) & (table[column] < LAST_TIME)
    if stream == "batches":
        right &= (table["kind"] < len(KINDS)) & (table["dtype"] < len(DTYPES))
        right &= (table["reason"] < len(REASONS)) & (table["bytes"] >= 0)
        right &= (table["begin"] > 0) & (table["end"] >= table["begin"])
    elif stream == "waits":
        right &= table["end"] >= table["begin"]
    elif stream == "counters":
        right &= np.isfinite(table["value"])
    if not right.all():
        one.problems.append(
            f"{len(table) - right.sum()} impossible records of {stream} were left out."
        )
        table = table[right]
    if stream == "tensors":
        return table  # in the batches' order
    times = table[TIMES[stream][0] if stream != "batches" else "begin"]
    if len(times) and (np.diff(times) < 0).any():
        table = table[np.argsort(times, kind="stable")]
    return table


def _mend_references(one: RankRecording) -> None:
    """Make sure that no record refers to a missing name or text."""
    for stream, column, known, lost in (
        ("tensors", "name", one.names, Name(LOST, 0, KINDS[0], DTYPES[0], 0)),
        ("ready", "name", one.names, Name(LOST, 0, KINDS[0], DTYPES[0], 0)),
        ("waits", "name", one.names, None),
        ("marks", "text", one.texts, None),
        ("counters", "counter", one.texts, "(counter lost)"),
    ):
        values = one.streams[stream][column]
        wrong = values >= len(known)
        if lost is None:
            wrong &= values != NONE
        if not wrong.any():
            continue
        one.problems.append(f"{wrong.sum()} records of {stream} refer to a name that is lost.")
        if lost is None:
            values[wrong] = NONE
        else:
            known.append(lost)  # type: ignore[arg-type]
            values[wrong] = len(known) - 1


def _mend_beginning(one: RankRecording) -> None:
    """Make a recording without its oldest part begin with a complete batch and its tensors."""
    batches, tensors = one.batches, one.tensors
    numbers, index = np.unique(batches["serial"].astype(np.uint32), return_inverse=True)
    at = np.searchsorted(numbers, tensors["batch"]).clip(max=max(len(numbers) - 1, 0))
    known = numbers[at] == tensors["batch"] if len(numbers) else np.zeros(len(tensors), bool)
    there = np.bincount(at[known], minlength=len(numbers))[index]
    whole = np.flatnonzero(there >= batches["tensors"])
    first = int(whole[0]) if len(whole) else 0
    kept = np.isin(tensors["batch"], batches["serial"][first:].astype(np.uint32))
    problem = "its oldest part was dropped, to keep the file below HVDTUNE_TIMELINE_MAX_MB"
    if first or not kept.all():
        problem += (
            f"; {first} batches and {len(tensors) - kept.sum()} tensors right after it were left "
            "out, because their tensors or batches were dropped"
        )
    one.problems.append(f"{problem}.")
    one.streams["batches"], one.streams["tensors"] = batches[first:], tensors[kept]


def _span(one: RankRecording) -> tuple[int, int]:
    """First and last time of the rank's batches, waits and marks, ns."""
    tables = (one.batches, "begin", "end"), (one.waits, "begin", "end"), (one.marks, "time", "time")
    begins = [int(table[first].min()) for table, first, _ in tables if len(table)]
    ends = [int(table[last].max()) for table, _, last in tables if len(table)]
    known = one.identity.started_ns
    return min(begins, default=known), max(ends, default=known)


def _move(one: RankRecording, clock: Clock) -> None:
    """Convert all times to rank 0's clock, in place."""
    if clock is SAME:
        return
    for stream, columns in TIMES.items():
        table = one.streams[stream]
        for column in columns:
            table[column] = clock.to_rank0(table[column])


def _name_missing(recording: Recording) -> None:
    """Name the ranks without a recording, unless only rank 0 was told to record."""
    missing = [rank for rank in range(recording.size) if rank not in recording.ranks]
    alone = list(recording.ranks) == [0] and len(recording.ranks[0].ready) > 0
    if not missing or alone:
        return
    named = ", ".join(map(str, missing[:MOST_NAMED]))
    if len(missing) > MOST_NAMED:
        named += f" and {len(missing) - MOST_NAMED} more"
    recording.problems.append(
        f"Of {recording.size} ranks, these are missing: {named}. Each host has its own ranks' "
        "files; `hvdtune timeline merge` joins them."
    )
