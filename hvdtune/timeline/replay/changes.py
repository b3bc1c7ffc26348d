"""How long the recorded steps would have taken with one change. Assumptions: docs/metrics.md.

`Bench` has a sample of the recorded steps and the rules in force; each change takes steps and rules
and returns changed ones. A gain compares two replays, so both have the errors of the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hvdtune.timeline.analysis.cpus import Load
from hvdtune.timeline.replay.play import (
    Replay,
    Rules,
    computing_longer,
    durations,
    mean,
    play,
    with_overlaps,
)
from hvdtune.timeline.replay.program import Costs, Play, Program, costs, programs
from hvdtune.timeline.structure.joint import Joint
from hvdtune.timeline.structure.steps import Steps

#: Stretches of this many consecutive steps, spread over the recording …
STRETCHES = 6
STRETCH = 6
#: … but no more than this many submissions and batches in all. Long steps get twice as many
#: stretches, SHORT ones, because a machine's slow periods last longer than a stretch.
BUDGET, SHORT = 120_000, 3
#: If all gradients are submitted at once, this last part of the computing before them is the
#: backward pass, which costs about twice the forward pass.
BACKWARD = 2 / 3
#: Gradients are submitted at once if that takes at most this share of the computing of a step.
AT_ONCE = 0.1
#: See in_two_modes: 0.5 for a normal distribution, 0.63 for a uniform one, 1 for two values.
TWO_MODES = 0.8

Stretches = list[list[Play]]
Change = Callable[[Stretches, Rules], tuple[Stretches, Rules]]


@dataclass
class Bench:
    """A sample of steps to try changes on. `weight`: converts a share of the sampled steps' time to
    a share of all recorded steps' time."""

    stretches: Stretches
    rules: Rules
    weight: float

    def __post_init__(self) -> None:
        self.durations = durations(self.stretches)
        self._of_rules: dict[Rules, Replay] = {}
        if self.rules.slowdown > 1 or self._waited:
            self.stretches = with_overlaps(self.stretches, self.rules, self.durations)
        self.unchanged = self.replay(unchanged)
        self.base = self.unchanged.mean()

    @property
    def _waited(self) -> bool:
        """Whether batches kept some program from computing."""
        return any(one.waiting.any() for stretch in self.stretches for one in stretch)

    @property
    def measured(self) -> float:
        """Mean recorded duration of the sample's counted steps, ns."""
        counted = [
            one.measured
            for stretch in self.stretches
            for one in (stretch[1:] if len(stretch) > 1 else stretch)
        ]
        return float(np.mean(counted)) if counted else float("nan")

    def replay(self, change: Change) -> Replay:
        """The sample with a change."""
        stretches, rules = change(self.stretches, self.rules)
        if stretches is not self.stretches:
            return play(stretches, rules, self.durations)
        # Only the rules differ, and the same rules may be tried again.
        if rules not in self._of_rules:
            self._of_rules[rules] = play(stretches, rules, self.durations)
        return self._of_rules[rules]

    def gain(self, change: Change) -> float:
        """Share of all recorded steps' time that a change saves; negative if it costs time."""
        return self.gain_and_error(change)[0]

    def gain_and_error(self, change: Change) -> tuple[float, float]:
        """The gain, and its standard error (jackknife), because the stretches are only a sample; 0
        if there is only one stretch."""
        if not self.base > 0:
            return 0.0, 0.0
        replay = self.replay(change)
        gain, now, before = self.saved(replay), replay.lengths, self.unchanged.lengths
        count = len(now)
        if count < 2:
            return gain, 0.0
        others = ~np.eye(count, dtype=bool)
        parts = [1 - mean(now[rest]) / mean(before[rest]) for rest in others]
        return gain, self.weight * float(np.sqrt(count - 1) * np.std(parts))

    def saved(self, replay: Replay) -> float:
        """Share of all recorded steps' time that a replay of a change saves."""
        return self.weight * (1 - replay.mean() / self.base) if self.base > 0 else 0.0

    def gains_of_thresholds(self, sizes: Sequence[float]) -> list[float]:
        """The gain of each fusion threshold, bytes, ascending."""
        return self._gains(threshold, sizes, self.rules.threshold, lambda replay: replay.filled)

    def gains_of_cycles(self, times: Sequence[float]) -> list[float]:
        """The gain of each cycle time, ns, ascending."""
        return self._gains(cycle, times, self.rules.cycle, lambda replay: replay.cycled)

    def _gains(
        self,
        change: Callable[[float], Change],
        values: Sequence[float],
        now: float,
        limits: Callable[[Replay], bool],
    ) -> list[float]:
        """The gain of each value of a setting, ascending; its value is `now` in the recording. From
        the first value on that limits nothing, all gains are the same."""
        found: list[tuple[float, float]] = []  # values that limit nothing, and what they save
        if not limits(self.unchanged):
            found.append((now, 0.0))
        gains = []
        for value in values:
            same = [gain for least, gain in found if value >= least]
            if same or value == now:
                gains.append(same[0] if same else 0.0)
                continue
            replay = self.replay(change(value))
            gains.append(self.saved(replay))
            if not limits(replay):
                found.append((value, gains[-1]))
        return gains


def bench(
    joint: Joint, steps: Steps, chosen: np.ndarray, rules: Rules, load: Load | None = None
) -> Bench:
    """A sample of the steps `chosen` ([S] bool)."""
    durations = np.mean([steps.end[r] - steps.begin[r] for r in steps.end], axis=0)
    weight = float(durations[chosen].sum() / durations.sum()) if len(durations) else 0.0
    stretches = [programs(joint, steps, part, load) for part in _sample(joint, steps, chosen)]
    return Bench([s for s in stretches if s], rules, weight)


def fitted(joint: Joint, steps: Steps) -> Costs:
    """See program.costs."""
    return costs(joint, steps)


def _sample(joint: Joint, steps: Steps, chosen: np.ndarray) -> Iterable[range]:
    """Stretches of consecutive chosen steps, spread evenly."""
    if not chosen.any():
        return []
    consecutive = np.concatenate([[True], np.diff(steps.number) == 1]) & chosen
    consecutive &= np.concatenate([[False], chosen[:-1]])
    starts = np.flatnonzero(chosen & ~consecutive)
    runs = [range(s, e) for s, e in zip(starts, _run_ends(chosen, starts), strict=True)]
    inside = steps.batch_step >= 0
    each = joint.tensors[inside].sum() / max(len(steps), 1) * (len(joint.views) + 4)
    whole = each * STRETCH * STRETCHES <= BUDGET
    length, number = (STRETCH, STRETCHES) if whole else (SHORT, 2 * STRETCHES)
    windows = [range(at, min(at + length, run.stop)) for run in runs for at in run[::length] or run]
    longest = max(len(window) for window in windows)
    windows = [window for window in windows if len(window) == longest]
    most = max(1, min(number, int(BUDGET / max(each * longest, 1))))
    at = np.unique(np.linspace(0, len(windows) - 1, most).round().astype(int))
    return [windows[i] for i in at]


def _run_ends(chosen: np.ndarray, starts: np.ndarray) -> list[int]:
    ends = []
    for at, start in enumerate(starts):
        stop = starts[at + 1] if at + 1 < len(starts) else len(chosen)
        gaps = np.flatnonzero(~chosen[start:stop])
        ends.append(int(start + gaps[0]) if len(gaps) else int(stop))
    return ends


# ---- changes -------------------------------------------------------------------------------------


def unchanged(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
    """No change."""
    return stretches, rules


def threshold(size: float) -> Change:
    """A different fusion threshold, bytes."""
    return lambda stretches, rules: (stretches, replace(rules, threshold=size))


def cheaper_bytes(byte: float) -> Change:
    """In batches that were not recorded, a byte takes at most this many ns."""

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        costs = replace(rules.costs, byte=min(rules.costs.byte, byte))
        return stretches, replace(rules, costs=costs)

    return change


def cycle(time: float) -> Change:
    """A different cycle time, ns."""
    return lambda stretches, rules: (stretches, replace(rules, cycle=time))


def batches_take(factor: Callable[[Play, list[int]], float]) -> Change:
    """Batches take `factor`(play, members) times as long."""
    return lambda stretches, rules: (stretches, replace(rules, slower=factor))


def each_step(change: Callable[[Play], Play]) -> Change:
    """The change that applies `change` to each step on its own."""
    return lambda stretches, rules: ([[change(one) for one in s] for s in stretches], rules)


def as_fast_as_others(late: Sequence[int]) -> Change:
    """The ranks at the positions `late` do what a typical other rank does."""

    def change(one: Play) -> Play:
        others = [at for at in range(len(one.programs)) if at not in late]
        same = [at for at in others if _same_work(one, at, late)] or others
        ordered = sorted(same, key=lambda at: one.programs[at].compute)
        typical = one.programs[ordered[len(ordered) // 2]]
        own = [typical if at in late else p for at, p in enumerate(one.programs)]
        return replace(one, programs=tuple(own))

    return each_step(change)


def _same_work(one: Play, at: int, late: Sequence[int]) -> bool:
    """Whether the rank at position `at` has the same tensors as the late ranks."""
    mine = np.isfinite(one.programs[at].submit)
    return all((np.isfinite(one.programs[other].submit) == mine).all() for other in late)


def evenly() -> Change:
    """The ranks share the work of each step equally.

    If it is known for how long each rank was kept from its CPU, the rest of its computing is work,
    including sleeping and reading: each rank does the mean of that. The time for which it was kept
    from its CPU stays, because ranks also share too few CPUs when their work is equal. If only CPU
    times are known, and computing is mostly CPU time, that is the work. Otherwise (a GPU computes)
    all ranks do what the one nearest to the mean does, stretched to the mean.
    """

    def change(one: Play) -> Play:
        if not _same_tensors(one):
            return one
        if _computes_on_cpu(one):
            own = (
                (_stretched(p, length) for p, length in zip(one.programs, _even(one), strict=True))
                if len(one.kept) == len(one.programs)
                else (
                    _stretched(p, p.compute * float(one.cpu.mean() / cpu))
                    for p, cpu in zip(one.programs, one.cpu, strict=True)
                )
            )
            return replace(one, programs=tuple(own))
        mean = float(np.mean([p.compute for p in one.programs]))
        near = min(one.programs, key=lambda p: abs(p.compute - mean))
        return replace(one, programs=(_stretched(near, mean),) * len(one.programs))

    return each_step(change)


def shared_out() -> Change:
    """The same work in other, constant shares, so that all ranks compute for the same time on
    average; the variation from step to step stays."""

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        own = np.mean(_able_of_all(stretches), axis=0)
        factors = own.mean() / np.maximum(own, 1.0)

        def shared(one: Play) -> Play:
            able = _able(one)
            if len(able) != len(factors) or not _same_tensors(one):
                return one
            compute = np.array([p.compute for p in one.programs])
            lengths = compute + (factors - 1) * able
            return replace(one, programs=tuple(map(_stretched, one.programs, lengths.tolist())))

        return each_step(shared)(stretches, rules)

    return change


def in_two_modes(plays: Iterable[Play]) -> bool:
    """Whether ranks compute either little or much in a step, with nothing between: the middle half
    of the values is nearly as wide as the middle four fifths, unlike values around one middle."""
    own = _able_of_all([list(plays)])
    if not own.size:
        return False
    low, first, third, high = np.percentile(own - own.mean(axis=0), [10, 25, 75, 90])
    return bool(third - first >= TWO_MODES * (high - low) > 0)


def _able_of_all(stretches: Stretches) -> np.ndarray:
    """[steps, ranks] ns, see _able."""
    every = [one for stretch in stretches for one in stretch]
    ranks = min((len(one.programs) for one in every), default=0)
    return np.array([_able(one)[:ranks] for one in every]).reshape(len(every), ranks)


def _same_tensors(one: Play) -> bool:
    """Whether all ranks have the same tensors."""
    return len({np.isfinite(p.submit).tobytes() for p in one.programs}) <= 1


def steadily() -> Change:
    """Each rank computes in every step as much as in its median one; the time for which it was kept
    from its CPU stays. So pauses vanish, and values that vary around a middle get their mean."""

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        middle = np.median(_able_of_all(stretches), axis=0)

        def steady(one: Play) -> Play:
            kept = np.array([p.compute for p in one.programs]) - _able(one)
            return _computing(one, middle + kept) if len(kept) == len(middle) else one

        return each_step(steady)(stretches, rules)

    return change


def as_the_quickest() -> Change:
    """In each step, all ranks do what the fastest of them does."""

    def change(one: Play) -> Play:
        able = _able(one)
        return _computing(one, np.array([p.compute for p in one.programs]) - (able - able.min()))

    return each_step(change)


def _computing(one: Play, lengths: np.ndarray) -> Play:
    """The ranks compute for these times, [ranks] ns, if all have the same tensors. If computing is
    not CPU time, all follow the program of the rank nearest to its time, so nothing varies within
    the step either."""
    if not _same_tensors(one):
        return one
    programs = list(one.programs)
    if not _computes_on_cpu(one):
        middle = float(lengths.mean())
        programs = [min(programs, key=lambda p: abs(p.compute - middle))] * len(programs)
    return replace(one, programs=tuple(map(_stretched, programs, lengths.tolist())))


def _able(one: Play) -> np.ndarray:
    """[ranks] ns of computing, without the known time for which each lacked its CPU."""
    compute = np.array([p.compute for p in one.programs])
    kept = one.kept if len(one.kept) == len(compute) else 0.0
    able: np.ndarray = compute - np.minimum(kept, compute)
    return able


def _even(one: Play) -> np.ndarray:
    """[ranks] ns: computing equal work, with each rank kept from its CPU for as long as it was."""
    compute = np.array([p.compute for p in one.programs])
    kept = np.minimum(one.kept, compute)
    even: np.ndarray = (compute - kept).mean() + kept
    return even


def computing_takes(
    times: Callable[[Play], np.ndarray],
    batches: Callable[[Play], float] = lambda _: 1.0,
    work: float = 1.0,
) -> Change:
    """Ranks compute for `times` ([ranks] ns), batches take `batches` times as long, and the CPUs'
    work at least `work` times as long. Each rank's wait for a CPU shrinks in proportion to its
    computing."""

    def change(one: Play) -> Play:
        new = times(one)
        own = tuple(_stretched(p, float(t)) for p, t in zip(one.programs, new, strict=True))
        spared = np.array([p.compute for p in one.programs]) - new
        kept = np.maximum(one.kept - spared, 0.0) if len(one.kept) else one.kept
        waiting = np.minimum(one.waiting, kept) if len(one.waiting) else one.waiting
        less = tuple((work * computing, work * batch) for computing, batch in one.work)
        return replace(one, programs=own, kept=kept, waiting=waiting, work=less)

    def both(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        was = rules.slower or (lambda _one, _members: 1.0)
        slower = replace(rules, slower=lambda one, on: was(one, on) * batches(one))
        return each_step(change)(stretches, slower)

    return both


def _computes_on_cpu(one: Play) -> bool:
    return len(one.cpu) == len(one.programs) and bool((one.cpu > 0).all())


def _stretched(program: Program, compute: float) -> Program:
    """The same program, stretched to compute for this long."""
    if not program.compute > 0:
        return program
    factor = compute / program.compute
    waits = tuple((at * factor, needs) for at, needs in program.waits)
    return Program(program.submit * factor, waits, compute)


def submitted_first(name: int) -> Change:
    """The tensor is submitted first: the computing for it is done before the others'."""

    def change(one: Play) -> Play:
        at = np.flatnonzero(one.name == name)
        if len(at) != 1:
            return one
        return replace(one, programs=tuple(_moved(p, int(at[0])) for p in one.programs))

    return each_step(change)


def _moved(program: Program, index: int) -> Program:
    submit = program.submit
    finite = np.isfinite(submit)
    if not finite[index] or finite.sum() < 3:
        return program
    before = np.sort(submit[finite & (submit < submit[index])])
    if not len(before):
        return program
    own = submit[index] - before[-1]  # computing for this tensor only
    gap = _typical_gap(np.diff(before))
    moved = np.where(finite & (submit < submit[index]), submit + own, submit)
    moved[index] = max(0.0, before[0] - gap) + own
    return replace(program, submit=moved)


def _typical_gap(gaps: np.ndarray) -> float:
    """The gap that contains the median of the time. If the tensors of a layer are submitted
    together, it is the computing between layers; the median gap would be 0."""
    if not gaps.sum() > 0:
        return 0.0
    ordered = np.sort(gaps)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)])


def overlapped(no_cpu_left: bool = False) -> Change:
    """Programs wait for nothing before the last wait of the step. Gradients that were submitted all
    at once are submitted when they are computed: evenly over the backward pass. Without a spare
    CPU, the engine's work slows the computing.

    The time for which a program waited for its CPU while batches ran does not count as computing:
    it would have waited for the batches anyway.
    """

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        plays, rules = each_step(_without_standing)(stretches, rules)
        # Judged for the program, not for each step: in some steps something delays a submission.
        burst = in_a_burst(one for stretch in plays for one in stretch)

        def moved(one: Play) -> Play:
            taken = sum(duration for _, duration in one.recorded) if no_cpu_left else 0.0
            own = (_delayed(_overlapped(p, burst), taken) for p in one.programs)
            return replace(one, programs=tuple(own))

        return each_step(moved)(plays, rules)

    return change


def _without_standing(one: Play) -> Play:
    """The step without the time for which programs waited for their CPU while batches ran; all time
    lost to batches must be added later."""
    if len(one.waiting) != len(one.programs) or len(one.overlapped) != len(one.programs):
        return one
    stood = np.minimum(one.waiting, one.overlapped)
    own = (computing_longer(p, -float(t)) for p, t in zip(one.programs, stood, strict=True))
    return replace(one, programs=tuple(own), overlapped=np.zeros(len(stood)), lost=one.lost_anew)


def in_a_burst(plays: Iterable[Play]) -> bool:
    """Whether a step's tensors are submitted together, with hardly any computing in between. Then
    only the submission of the other tensors can hide communication."""
    spans = [
        float(np.ptp(own) / p.compute)
        for one in plays
        for p in one.programs
        if len(own := p.submit[np.isfinite(p.submit)]) > 2 and p.compute > 0
    ]
    return bool(spans) and float(np.median(spans)) < AT_ONCE


def _delayed(program: Program, time: float) -> Program:
    """The program with its waits and its end later by `time`."""
    waits = tuple((at + time, needs) for at, needs in program.waits)
    return replace(program, waits=waits, compute=program.compute + time)


def _overlapped(program: Program, burst: bool) -> Program:
    finite = np.isfinite(program.submit)
    if not finite.any():
        return program
    needs = np.unique(np.concatenate([needs for _, needs in program.waits]))
    at = max(time for time, _ in program.waits)
    submit = program.submit
    if burst:
        order = np.argsort(submit[finite], kind="stable")
        place = np.empty(len(order))
        place[order] = np.arange(1, len(order) + 1) / len(order)
        submit = submit.copy()
        first = submit[finite].min()
        submit[finite] = first * (1 - BACKWARD * (1 - place))
    return replace(program, submit=submit, waits=((at, needs),))


def together() -> Change:
    """All tensors for which the program waits one by one are submitted together, when the last of
    them is, with one wait for all."""

    def change(program: Program) -> Program:
        finite = np.isfinite(program.submit)
        at = max(time for time, _ in program.waits)
        needs = np.unique(np.concatenate([needs for _, needs in program.waits]))
        submit = np.where(finite & (program.submit <= at), at, program.submit)
        return replace(program, submit=submit, waits=((at, needs),))

    return each_step(lambda one: replace(one, programs=tuple(map(change, one.programs))))


def left_out(names: Sequence[int]) -> Change:
    """Programs never submit the tensors `names` (ids of the reference rank), nor wait for them."""

    def without(program: Program, gone: np.ndarray) -> Program:
        kept = ((at, needs[~gone[needs]]) for at, needs in program.waits)
        waits = tuple((at, needs) for at, needs in kept if len(needs))
        return replace(program, submit=np.where(gone, np.inf, program.submit), waits=waits)

    def change(one: Play) -> Play:
        gone = np.isin(one.name, names)
        return replace(one, programs=tuple(without(p, gone) for p in one.programs))

    return each_step(change)


def every_other_step(silent: Callable[[Play], Play]) -> Change:
    """Gradients of two steps are summed before they are sent: every other step is `silent`."""

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        result = []
        for number, stretch in enumerate(stretches):
            # The first step of a stretch is not counted. The counted ones are doubled, so that
            # each half has as many.
            even = len(stretch) - (len(stretch) > 1)
            doubled = stretch[:1] + stretch[len(stretch) - even :] * 2 if even else stretch
            result.append(
                [silent(one) if (at + number) % 2 else one for at, one in enumerate(doubled)]
            )
        return result, rules

    return change


def quicker_latencies(factor: float) -> Change:
    """Waking the coordinator, executors and blocked ranks takes this share of the time."""

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        costs = rules.costs
        names = ("closing", "beginning", "gap", "waking")
        own = replace(costs, **{name: factor * getattr(costs, name) for name in names})
        return stretches, replace(rules, costs=own)

    return change


def quicker_negotiation(closing: float, beginning: float) -> Change:
    """The coordinator takes at most this long, ns."""

    def change(stretches: Stretches, rules: Rules) -> tuple[Stretches, Rules]:
        own = replace(
            rules.costs,
            closing=min(closing, rules.costs.closing),
            beginning=min(beginning, rules.costs.beginning),
        )
        return stretches, replace(rules, costs=own)

    return change
