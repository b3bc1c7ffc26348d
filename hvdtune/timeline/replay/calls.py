"""How long a step would take if other operations than gradients' were left out, or made in one
call.

Besides the operation itself, that saves the program's own time around it: the interpreter's from
one call to the next, and pickling, if it was recorded. Own times: program.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hvdtune.timeline.analysis.cpus import Host
from hvdtune.timeline.record.layout import PICKLING
from hvdtune.timeline.replay import changes
from hvdtune.timeline.replay.changes import Change, Stretches, each_step
from hvdtune.timeline.replay.play import Rules
from hvdtune.timeline.replay.program import Play, Program, boundaries
from hvdtune.timeline.structure.joint import Joint, View
from hvdtune.timeline.structure.steps import Steps

#: A loop that only makes calls typically takes at most this long, ns, for each; a loop that takes
#: longer computes something.
LOOP = 300_000
#: … and this long, ns, if it has lost its CPU.
SLICE = 5_000_000

#: Begins and ends, own times, ns, of work that a program no longer does.
Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class Pickling:
    """When objects were pickled and unpickled in the steps of a recording."""

    joint: Joint
    steps: Steps

    @cached_property
    def _boundaries(self) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        return boundaries(self.joint, self.steps)

    def spans(self, names: frozenset[str], step: int) -> list[Spans]:
        """The pickling in a step of objects whose counters have these names (pickling_of), for each
        rank in the order of Joint.views."""
        begin, end = self._boundaries
        return [
            _pickled(view, names, int(begin[rank][step]), int(end[rank][step]))
            for rank, view in self.joint.views.items()
        ]


def _pickled(view: View, names: frozenset[str], begin: int, end: int) -> Spans:
    texts = {at for at, text in enumerate(view.recording.texts) if text in names}
    counters = view.recording.counters
    inside = (counters["time"] > begin) & (counters["time"] <= end)
    inside &= np.isin(counters["counter"], list(texts))
    until = counters["time"][inside].astype(np.int64)
    since = np.maximum(until - (1e9 * counters["value"][inside]).astype(np.int64), begin)

    def own(times: np.ndarray) -> np.ndarray:
        blocked = view.blocked.until(times) - view.blocked.until(np.array(begin))
        return (times - begin - blocked).astype(float)

    return list(zip(own(since).tolist(), own(until).tolist(), strict=True))


def pickling_of(names: Sequence[str]) -> frozenset[str]:
    """The names of the counters for objects whose tensors have these names."""
    return frozenset(PICKLING.format(name.removesuffix(".sz").removesuffix(".t")) for name in names)


def left_out(
    names: Sequence[int],
    hosts: Sequence[Host] = (),
    pickled: Callable[[int], list[Spans]] | None = None,
) -> Change:
    """Programs never submit the tensors `names` (ids of the reference rank), nor wait for them, nor
    pickle their objects: see Pickling.spans for `pickled`."""

    def change(one: Play) -> Play:
        gone = np.isin(one.name, names)
        spans = pickled(one.step) if pickled else [[] for _ in one.programs]
        own = tuple(
            _shortened(_without(program, gone), [*_loops(program, gone), *done])
            for program, done in zip(one.programs, spans, strict=True)
        )
        return _less_work(replace(one, programs=own), one, hosts)

    return each_step(change)


def in_one_call(names: Sequence[int], hosts: Sequence[Host] = ()) -> Change:
    """The tensors `names`, for which programs wait one after the other, are submitted together,
    when the last of them is ready, with one wait for all."""

    def change(one: Play) -> Play:
        chosen = np.isin(one.name, names)
        own = tuple(
            _shortened(_together(program, chosen), _loops(program, chosen))
            for program in one.programs
        )
        return _less_work(replace(one, programs=own), one, hosts)

    return each_step(change)


def of_some(names: Sequence[int], change: Change) -> Change:
    """A change of the tensors `names` only; the submissions of others, and the waits for them, stay
    as they were."""

    def changed(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        chosen = [[_only(one, np.isin(one.name, names)) for one in s] for s in stretches]
        new, rules = change(chosen, rules)
        return [
            [_merged(was, one, np.isin(was.name, names)) for was, one in zip(old, s, strict=True)]
            for old, s in zip(stretches, new, strict=True)
        ], rules

    return changed


def every_other_step(names: Sequence[int]) -> Change:
    """The tensors `names` are sent in every other step, if they are gradients: allreduces."""

    def silent(one: Play) -> Play:
        if not one.reducing[np.isin(one.name, names)].all():
            return one
        gone = np.isin(one.name, names)
        return replace(one, programs=tuple(_without(program, gone) for program in one.programs))

    return changes.every_other_step(silent)


def only(one: Play, names: Sequence[int]) -> Play:
    """The step with nothing but the tensors `names`."""
    return _only(one, np.isin(one.name, names))


def _only(one: Play, chosen: np.ndarray) -> Play:
    return replace(one, programs=tuple(_without(program, ~chosen) for program in one.programs))


def _merged(was: Play, one: Play, chosen: np.ndarray) -> Play:
    own = []
    for before, now in zip(was.programs, one.programs, strict=True):
        rest = _without(before, chosen)
        waits = sorted([*rest.waits, *now.waits], key=lambda wait: wait[0])
        submit = np.where(chosen, now.submit, before.submit)
        own.append(Program(submit, tuple(waits), max(now.compute, *(at for at, _ in waits), 0.0)))
    return replace(one, programs=tuple(own))


def _without(program: Program, gone: np.ndarray) -> Program:
    """Without these tensors. The last wait stays: something may be submitted until then."""
    kept = [(at, needs[~gone[needs]]) for at, needs in program.waits]
    waits = tuple((at, needs) for at, needs in kept[:-1] if len(needs)) + tuple(kept[-1:])
    return Program(np.where(gone, np.inf, program.submit), waits, program.compute)


def _together(program: Program, chosen: np.ndarray) -> Program:
    own = np.flatnonzero(chosen & np.isfinite(program.submit))
    if len(own) < 2:
        return program
    last = float(program.submit[own].max())
    rest = _without(program, chosen)
    at = next((time for time, needs in program.waits if time >= last and own[-1] in needs), last)
    waits = sorted([*rest.waits, (max(at, last), own)], key=lambda wait: wait[0])
    submit = program.submit.copy()
    submit[own] = last
    return Program(submit, tuple(waits), program.compute)


def _loops(program: Program, chosen: np.ndarray) -> Spans:
    """Own times from one of the chosen calls to the next, if the program neither submits nor waits
    for anything else in between, and typically takes no longer than a loop."""
    finite = np.isfinite(program.submit)
    own = np.unique(program.submit[chosen & finite])
    others = program.submit[~chosen & finite]
    others = np.concatenate(
        [others, [at for at, needs in program.waits if not chosen[needs].all()]]
    )
    if len(own) < 2:
        return []
    follows = np.searchsorted(np.sort(others), own, side="right")
    gaps = np.diff(own)
    near = follows[1:] == follows[:-1]
    if not near.any() or np.median(gaps[near]) > LOOP:
        return []
    near &= gaps <= SLICE
    return list(zip(own[:-1][near].tolist(), own[1:][near].tolist(), strict=True))


def _shortened(program: Program, spans: Spans) -> Program:
    """The program without the computing in `spans`."""
    spans = sorted((max(a, 0.0), min(b, program.compute)) for a, b in spans)
    knots, gone, moved = [0.0], [0.0], 0.0
    for begin, end in spans:
        begin = max(begin, knots[-1])
        if end > begin:
            moved += end - begin
            knots += [begin, end]
            gone += [gone[-1], moved]
    if not moved:
        return program
    lost = np.interp(program.submit, knots, gone)
    submit = np.where(np.isfinite(program.submit), program.submit - lost, np.inf)
    waits = tuple((at - float(np.interp(at, knots, gone)), needs) for at, needs in program.waits)
    return Program(submit, waits, program.compute - moved)


def _less_work(one: Play, was: Play, hosts: Sequence[Host]) -> Play:
    """The step with less work for the CPUs as well."""
    if len(one.work) != len(hosts):
        return one
    saved = [
        before.compute - now.compute for before, now in zip(was.programs, one.programs, strict=True)
    ]
    work = []
    for (computing, batch), host in zip(one.work, hosts, strict=True):
        less = float(np.mean([saved[at] for at in host.members])) * host.ranks / host.cpus
        work.append((max(0.0, computing - less), batch))
    return replace(one, work=tuple(work))
