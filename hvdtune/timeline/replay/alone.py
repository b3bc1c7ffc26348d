"""Tensors that a program waits for one by one: it submits one, waits for it, and goes on.

In a program (program.Program), a wait is for a single tensor if only that was submitted since the
wait before. A program that submits several and then waits for each does not count. A wait for a
tensor that is already there leaves no record, and loses no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hvdtune.timeline.replay.changes import Change, each_step
from hvdtune.timeline.replay.program import Play, Program

#: A run of such waits ends if there is computing in between: this many times their typical gap …
LONG_GAP = 10
#: … and this share of the step's computing.
LONG_SHARE = 0.01
#: Own time between small tensors is the time of a call if it is at most this, ns.
CALL = 500e3


def waits_alone(program: Program) -> list[tuple[int, int]]:
    """(index of the wait, tensor) of the waits for a single tensor, in order."""
    waits = program.waits[:-1]  # the last one was not recorded
    upto = np.searchsorted(program.submissions, [at for at, _ in waits], side="right")
    since = np.concatenate([[0], upto[:-1]]).astype(int)
    numbers = np.flatnonzero(upto - since == 1)
    tensors = program.order[since[numbers]].tolist()
    return [
        (number, tensor)
        for number, tensor in zip(numbers.tolist(), tensors, strict=True)
        if tensor in program.needed[number]
    ]


def runs(program: Program) -> list[list[tuple[int, int]]]:
    """Two or more such waits in a row, with no other wait and no computing in between."""
    found: list[list[tuple[int, int]]] = []
    alone = waits_alone(program)
    gaps = [
        program.submit[tensor] - program.waits[before][0]
        for (before, _), (_, tensor) in pairwise(alone)
    ]
    limit = LONG_GAP * float(np.median(gaps)) if gaps else 0.0
    limit = max(limit, LONG_SHARE * program.compute)
    for at, one in enumerate(alone):
        follows = at > 0 and one[0] == alone[at - 1][0] + 1 and gaps[at - 1] <= limit
        if follows:
            found[-1].append(one)
        else:
            found.append([one])
    return [run for run in found if len(run) > 1]


def count(one: Play) -> float:
    """The number of waits for single tensors in a step, mean over the ranks."""
    return float(np.mean([len(waits_alone(p)) for p in one.programs]))


def members(one: Play) -> np.ndarray:
    """[T] bool: tensors for which some rank waits singly."""
    result = np.zeros(len(one.name), bool)
    for program in one.programs:
        result[[tensor for _, tensor in waits_alone(program)]] = True
    return result


def in_groups(*, calls: bool = True) -> Change:
    """The tensors of each run are submitted together, when the last of them is, with one wait for
    all. `calls`: the time of every call is still spent; else only that of one."""
    return _every(lambda program: _grouped(program, calls))


def submitted_at_once() -> Change:
    """Each run is submitted without waiting, and then the program waits for all of it."""

    def change(program: Program) -> Program:
        return _merged(program, runs(program))

    return _every(change)


def at_the_end() -> Change:
    """The waits for single tensors are moved to the step's last wait."""

    def change(program: Program) -> Program:
        alone = waits_alone(program)
        gone = {number for number, _ in alone}
        tensors = np.array([tensor for _, tensor in alone], int)
        kept = [wait for number, wait in enumerate(program.waits) if number not in gone]
        at, needs = kept[-1]
        last = float(max([at, *program.submit[tensors]])) if len(tensors) else at
        kept[-1] = last, np.unique(np.concatenate([needs, tensors]))
        return replace(program, waits=tuple(kept))

    return _every(change)


def _every(change: Callable[[Program], Program]) -> Change:
    return each_step(lambda one: replace(one, programs=tuple(map(change, one.programs))))


def _merged(program: Program, found: list[list[tuple[int, int]]]) -> Program:
    """Each run keeps only its last wait, for all of its tensors."""
    waits = list(program.waits)
    gone: set[int] = set()
    for run in found:
        last = run[-1][0]
        waits[last] = waits[last][0], np.array([tensor for _, tensor in run])
        gone.update(number for number, _ in run[:-1])
    kept = tuple(wait for number, wait in enumerate(waits) if number not in gone)
    return replace(program, waits=kept)


def _grouped(program: Program, calls: bool) -> Program:
    found = runs(program)
    merged = _merged(program, found)
    submit = program.submit.copy()
    ends, saved = [], []
    for run in found:
        tensors = [tensor for _, tensor in run]
        first, last = float(submit[tensors[0]]), float(submit[tensors[-1]])
        submit[tensors] = last
        if (last - first) / (len(run) - 1) <= CALL:
            ends.append(last)
            saved.append(last - first)
    if calls or not ends:
        return replace(merged, submit=submit)

    gone = np.concatenate([[0.0], np.cumsum(saved)])

    def earlier(time: float) -> float:
        return time - float(gone[np.searchsorted(ends, time, side="right")])

    finite = np.isfinite(submit)
    submit[finite] = [earlier(time) for time in submit[finite]]
    waits = tuple((earlier(at), needs) for at, needs in merged.waits)
    return Program(submit, waits, earlier(program.compute))
