"""Replays recorded steps by the engine's rules: how long would they have taken, if …?

The rules are those of native/engine/coordination/coordinator.cc: a tensor is ready when all ranks
have submitted it. The ready tensors are sent in a batch when a rank waits for one of them, when all
of the step are ready, when the oldest has waited for a cycle time, or when the threshold is
reached. Batches run one after another, on all ranks at the same time. Their durations are from the
recording (program.Costs).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from hvdtune.timeline.replay.program import Costs, Play, Program, typical

#: Steps of each stretch that are not counted: until the ranks are as far apart as usual.
WARM_UP = 1
#: If CPUs are scarce: how many trials a step gets at most before its final replay.
TRIALS = 2
#: If a trial changes the overlap by at most this share of the step, it is the final replay.
SETTLED = 1e-9
#: While batches run, a program still has at least this share of a CPU.
LEAST_SHARE = 0.1
#: A ridge, as a share of a step: programs also wait for other reasons, and batches' need of the
#: CPUs may be wrong. A short overlap says little about waiting, a long one nearly everything.
PRIOR_OVERLAP = 0.17
#: The time that a program needs between its last submissions and its wait for them is this
#: percentile of the sample's times.
LEAST_GAP = 10

#: Names of a batch → typical duration, ns, of the recorded batches with exactly these tensors.
Durations = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Rules:
    """The engine's behaviour. threshold: bytes; cycle: ns. `slower`: returns a factor of a batch's
    duration, given its play and members. `slowdown`: the factor of computing and batches while they
    overlap. `beside`: ns of a CPU that each batch takes on each rank besides its duration."""

    threshold: float
    cycle: float
    costs: Costs
    slower: Callable[[Play, list[int]], float] | None = None
    slowdown: float = 1.0
    beside: float = 0.0


@dataclass
class Replay:
    """The result of a replay. lengths: [stretches, 2], the time of all counted steps of each, ns,
    and their number. cycled: whether a batch was closed because of the cycle time; if not, any
    longer one gives the same. filled: whether the threshold was reached; if not, any larger one
    gives the same."""

    lengths: np.ndarray
    cycled: bool = False
    filled: bool = False

    def mean(self) -> float:
        """The mean duration of a step, ns; NaN if there are none."""
        return mean(self.lengths)


def mean(lengths: np.ndarray) -> float:
    """Mean duration of a step, ns, of some stretches' Replay.lengths; NaN if there are none."""
    total, count = lengths.sum(axis=0)
    return float(total / count) if count else float("nan")


def play(
    stretches: Sequence[Sequence[Play]], rules: Rules, known: Durations | None = None
) -> Replay:
    """Replay all stretches of consecutive steps. The first WARM_UP steps of each stretch that is
    longer do not count. `known`: what durations() found before something was changed."""
    if known is None:
        known = durations(stretches)
    result = Replay(np.zeros((len(stretches), 2)))
    for number, stretch in enumerate(stretches):
        if not stretch:
            continue
        ranks = len(stretch[0].programs)
        clocks, free = [0.0] * ranks, 0.0
        marks = [0.0]
        for one in stretch:
            if len(one.overlapped) == ranks:
                step = _contended(one, rules, known, clocks, free)
            else:
                step = _Step(one, rules, known, clocks, free).run()
            result.cycled |= step.cycled
            result.filled |= step.filled
            clocks, free = step.ends, step.free
            late = max(0.0, marks[-1] + _least(one, step) - sum(clocks) / ranks)
            clocks = [clock + late for clock in clocks]
            marks.append(sum(clocks) / ranks)
        skipped = WARM_UP if len(stretch) > WARM_UP else 0
        result.lengths[number] = marks[-1] - marks[skipped], len(stretch) - skipped
    return result


def _least(one: Play, step: _Step) -> float:
    """The least time of a step, ns, for the work that CPUs must do in it. If the recorded step was
    faster, the work is overestimated, and this bound is lowered accordingly."""
    recorded = sum(duration + step.rules.beside for _, duration in one.recorded)
    now = step.occupied()
    least = 0.0
    for computing, batch in one.work:
        was = computing + batch * recorded
        trust = min(1.0, one.measured / was) if was > 0 else 0.0
        least = max(least, trust * (computing + batch * now))
    return least


def _with_lost(one: Play, rules: Rules, behind: np.ndarray) -> Play:
    """The step with the share of its speed that each program loses while it overlaps with batches.

    It is the program's waiting in the recorded step over its overlap there. The shorter that
    overlap, the more the batches' need of the CPUs counts instead (PRIOR_OVERLAP). Waiting after
    the last submissions (`behind`) is left out, since there is nothing left to compute. For overlap
    that is new (`lost_anew`) the recording counts less, as if one more whole step had shown only
    the batches' need."""
    wanted = 1 - 1 / rules.slowdown
    if len(one.waiting) != len(one.overlapped):
        lost = np.full(len(one.overlapped), wanted)
        return replace(one, lost=lost, lost_anew=lost)
    waited = np.minimum(one.waiting, (1 - LEAST_SHARE) * one.overlapped)
    behind = np.minimum(behind, waited)
    overlapped = one.overlapped - behind
    prior = max(PRIOR_OVERLAP * one.measured, 1.0) ** 2
    lost = ((waited - behind) * overlapped + wanted * prior) / (overlapped**2 + prior)
    step = max(one.measured, 1.0)
    anew = (waited - behind + wanted * step) / (overlapped + step)
    return replace(one, lost=lost, lost_anew=anew)


def _behind(stretches: Sequence[Sequence[Play]]) -> list[list[np.ndarray]]:
    """For each step [ranks] ns by which a program took longer than it needs (LEAST_GAP) from its
    last submissions to the waits after them."""
    gaps = [[[_gaps(p) for p in one.programs] for one in stretch] for stretch in stretches]
    least: dict[int, float] = {}
    for rank in {rank for stretch in gaps for own in stretch for rank in range(len(own))}:
        every = [own[rank] for stretch in gaps for own in stretch if rank < len(own)]
        known = np.concatenate(every)
        least[rank] = float(np.percentile(known, LEAST_GAP)) if len(known) else 0.0
    return [
        [
            np.array([np.maximum(gap - least[rank], 0.0).sum() for rank, gap in enumerate(own)])
            for own in stretch
        ]
        for stretch in gaps
    ]


def _gaps(program: Program) -> np.ndarray:
    """Own times, ns, from submissions to the first recorded wait after them. A wait for something
    that is done leaves no record, and a program's last wait was not recorded."""
    submit = np.sort(program.submit[np.isfinite(program.submit)])
    waits = np.array([at for at, _ in program.waits[:-1]])
    if not len(submit) or not len(waits):
        return np.zeros(0)
    last = np.searchsorted(submit, waits, side="right") - 1
    first = (last >= 0) & (last != np.concatenate([[-1], last[:-1]]))
    gaps: np.ndarray = (waits - submit[np.maximum(last, 0)])[first]
    return gaps


def _contended(
    one: Play,
    rules: Rules,
    known: Durations,
    clocks: list[float],
    free: float,
) -> _Step:
    """The step after its replay if CPUs are scarce. While batches run and a rank computes, both
    lose some of their speed; the recorded times already contain the recorded step's loss. The
    overlap depends on the durations and these on the overlap: trials begin with the recorded
    overlap."""
    each = one.lost
    lost = float(each.mean())
    stretch, overlapped = 1.0, one.overlapped
    cycled = filled = False
    for trial in range(TRIALS + 1):
        longer = each * (overlapped - one.overlapped)
        own = tuple(
            computing_longer(program, float(delay))
            for program, delay in zip(one.programs, longer, strict=True)
        )
        step = _Step(one, rules, known, clocks, free, stretch, own).run()
        step.cycled = cycled = cycled | step.cycled
        step.filled = filled = filled | step.filled
        if trial == TRIALS:
            break
        before, stretch = stretch, (1 - one.hidden * lost) / (1 - step.hidden() * lost)
        assumed, overlapped = overlapped, step.overlapped * stretch / before
        change = max(abs(stretch - before) * one.measured, *np.abs(overlapped - assumed).tolist())
        if change <= SETTLED * one.measured:
            break
    return step


def with_overlaps(
    stretches: Sequence[Sequence[Play]], rules: Rules, known: Durations
) -> list[list[Play]]:
    """The steps with `overlapped`, `hidden` and `lost` as they are when nothing is changed."""
    result = []
    for stretch, stood in zip(stretches, _behind(stretches), strict=True):
        clocks, free = [0.0] * len(stretch[0].programs) if stretch else [], 0.0
        plays = []
        for one, behind in zip(stretch, stood, strict=True):
            step = _Step(one, rules, known, clocks, free).run()
            clocks, free = step.ends, step.free
            own = replace(one, overlapped=step.overlapped, hidden=step.hidden())
            plays.append(_with_lost(own, rules, behind))
        result.append(plays)
    return result


def computing_longer(program: Program, delay: float) -> Program:
    """The program with its computing between the first submission and the last wait longer by
    `delay`, ns (shorter if negative)."""
    finite = np.isfinite(program.submit)
    if delay == 0 or not finite.any() or not program.waits:
        return program
    first = float(program.submit[finite].min())
    last = max(time for time, _ in program.waits)
    if last <= first:
        return program
    factor = max(0.1, 1 + delay / (last - first))

    def moved(time: float) -> float:
        return time + (min(max(time, first), last) - first) * (factor - 1)

    waits = tuple((moved(at), needs) for at, needs in program.waits)
    # Tensors without this rank are submitted at infinity, and stay there.
    submit = program.submit + (np.clip(program.submit, first, last) - first) * (factor - 1)
    return Program(submit, waits, moved(program.compute))


def durations(stretches: Sequence[Sequence[Play]]) -> Durations:
    """The typical durations of the recorded batches."""
    seen: dict[tuple[int, ...], list[float]] = {}
    for stretch in stretches:
        for one in stretch:
            for names, _, duration in one.batches:
                seen.setdefault(names, []).append(duration)
    return {names: typical(np.array(each)) for names, each in seen.items()}


class _Step:
    """One step during its replay. Times are ns, float.

    Most steps have few tensors: lists of numbers are quicker here than arrays.
    """

    def __init__(
        self,
        one: Play,
        rules: Rules,
        known: Durations,
        clocks: list[float],
        free: float,
        stretch: float = 1.0,
        programs: tuple[Program, ...] = (),
    ) -> None:
        """`programs`: instead of the step's own, with the same waits at other times."""
        self.one, self.rules, self.known = one, rules, known
        # The step for `rules.slower`; `one` keeps what all replays of the step share.
        self.asked = replace(one, programs=programs) if programs and rules.slower else one
        self.free = free  # when the engine is done with its batches
        self.shift = list(clocks)  # real time − own time of each rank
        self.ends = list(clocks)  # after run()
        self.programs = programs or one.programs
        self.needed = [p.needed for p in one.programs]
        self.sent = [0] * len(self.programs)
        self.position = [0] * len(self.programs)
        self.missing: dict[int, set[int]] = {}  # what each blocked rank still waits for
        self.since: dict[int, float] = {}  # and since when
        self.names, self.sizes, self.alike = one.lists
        self.lacking = self._lacking()  # of each tensor, how many ranks have not submitted it
        self.latest = [-inf] * len(self.names)  # each tensor's last submission up to now
        self.done = [inf if count else -inf for count in self.lacking]
        self.left = len(self.names) - self.lacking.count(0)  # tensors that are in no batch yet
        self.fresh: list[tuple[float, int]] = []  # since when tensors are ready that _look has …
        self.queue: list[tuple[float, int]] = []  # … not seen, and has seen; sorted; in no batch
        self.running: deque[tuple[float, list[int]]] = deque()
        self.ran: list[tuple[float, float]] = []  # batches, begin and end
        self.stood: list[list[tuple[float, float]]] = [[] for _ in self.programs]  # blocked
        self.reaches = sum(self.sizes) >= rules.threshold  # a batch may become full
        self.cycled = self.filled = False  # see Replay
        self.speed = self._speed() * stretch

    def run(self) -> _Step:
        """The step itself, after its replay: `ends` are the ranks' times at its end, `free` is when
        the engine is done with its batches."""
        for rank in range(len(self.programs)):
            self._advance(rank)
        self._look()
        while self._turn():
            pass
        self.ends = [s + p.compute for s, p in zip(self.shift, self.programs, strict=True)]
        return self

    @cached_property
    def overlapped(self) -> np.ndarray:
        """After run(): [ranks] ns for which batches ran while the rank was not blocked, with their
        CPU time `beside`."""
        ran = np.array(self.ran).reshape(-1, 2)
        lengths = np.maximum(ran[:, 1] - ran[:, 0], 1e-9)
        result = np.zeros(len(self.programs))
        for rank, stood in enumerate(self.stood):
            left = lengths.copy()
            for begin, end in stood:
                inside = np.minimum(ran[:, 1], end) - np.maximum(ran[:, 0], begin)
                left -= np.maximum(inside, 0.0)
            left = np.maximum(left, 0.0)
            result[rank] = float((left * (1 + self.rules.beside / lengths)).sum())
        return result

    def occupied(self) -> float:
        """After run(): ns for which batches ran, with their CPU time `beside`."""
        return sum(end - begin + self.rules.beside for begin, end in self.ran)

    def hidden(self) -> float:
        """After run(): the overlap as a share of the batches' time, mean over the ranks."""
        ran = self.occupied()
        return float(self.overlapped.mean()) / ran if ran > 0 else 0.0

    def _lacking(self) -> list[int]:
        count = len(self.names)
        if all(len(p.sequence) == count for p in self.programs):
            return [len(self.programs)] * count
        with_: list[int] = np.isfinite([p.submit for p in self.programs]).sum(axis=0).tolist()
        return with_

    def _turn(self) -> bool:
        """The next event: a batch is complete, or one is closed."""
        time, everything, cycled = self._closing()
        while self.running and self.running[0][0] <= time:
            end, members = self.running.popleft()
            for index in members:
                self.done[index] = end
            for missing in self.missing.values():
                missing.difference_update(members)
            free = [rank for rank, missing in self.missing.items() if not missing]
            for rank in free:
                del self.missing[rank], self.since[rank]
                self._advance(rank)
            if free:
                self._look()
                return True
        if time < inf:
            self.cycled |= cycled
            self.filled |= not everything
            self._close(time, everything)
            return True
        if self.missing:  # they wait for a tensor that is never ready: the recording is incomplete
            for rank in list(self.missing):
                del self.missing[rank]
                since = self.since.pop(rank)
                for index in self.needed[rank][self.position[rank]]:
                    self.done[index] = min(self.done[index], since)
                self._advance(rank)
            self._look()
            return True
        return False

    def _advance(self, rank: int) -> None:
        """Compute, submit and wait until the rank is blocked or the step is over."""
        waits, needed, done = self.programs[rank].waits, self.needed[rank], self.done
        for position in range(self.position[rank], len(waits)):
            at, needs = waits[position][0], needed[position]
            self._submit(rank, at)
            time = at + self.shift[rank]
            complete = max([done[index] for index in needs], default=-inf)
            if complete == inf:
                self.position[rank] = position
                self.since[rank] = time
                self.missing[rank] = {index for index in needs if done[index] == inf}
                return
            if complete > time:
                self.stood[rank].append((time, complete))
                self.shift[rank] += complete + self.rules.costs.waking - time
        self.position[rank] = len(waits)
        self._submit(rank, inf)

    def _submit(self, rank: int, until: float) -> None:
        program, sent, shift = self.programs[rank], self.sent[rank], self.shift[rank]
        times = program.finite
        if sent == len(times) or times[sent] > until:
            return
        upto = bisect_right(times, until, sent)
        latest, lacking = self.latest, self.lacking
        for own, index in zip(times[sent:upto], program.sequence[sent:upto], strict=True):
            if own + shift > latest[index]:
                latest[index] = own + shift
            lacking[index] -= 1
            if not lacking[index]:
                self.fresh.append((latest[index], index))
        self.sent[rank] = upto

    def _look(self) -> None:
        """Find the tensors that are ready."""
        if self.fresh:
            self.queue = sorted(self.queue + self.fresh)
            self.fresh = []

    def _closing(self) -> tuple[float, bool, bool]:
        """When the coordinator closes a batch next, whether it closes all that is ready, and
        whether that is so because of the cycle time."""
        if not self.queue:
            return inf, False, False
        # While the coordinator runs a batch, it learns of the others only when that is done.
        hears = -inf if self.rules.costs.while_busy else self.free
        head = max(self.queue[0][0], hears)
        time = over = head + self.rules.cycle
        looks = inf
        for rank, since in self.since.items():
            looks = min(looks, since)
            if since < time:
                time = min(time, max(since, self._soonest(self.missing[rank], time)))
        # While it collects tensors, it sleeps until the cycle is over or a rank is blocked; only
        # then does it notice that it has enough of them. The first tensor wakes it.
        if len(self.queue) == self.left:
            done = self.queue[-1][0]
            time = min(time, max(done, hears if done <= head else looks))
        full = self._full()
        full = max(full, hears if full <= head else looks)
        time, full = max(time, hears), max(full, hears)
        return min(time, full), time <= full, over == time <= full

    def _soonest(self, missing: set[int], latest: float) -> float:
        """When the first of the `missing` tensors that is in no batch yet is ready, if it is until
        `latest`."""
        for since, index in self.queue:
            if index in missing:
                return since
            if since >= latest:
                break
        return inf

    def _full(self) -> float:
        """When the threshold is reached."""
        since, head = self.queue[0]
        size = self.sizes[head]
        if size >= self.rules.threshold:
            return since
        if not self.reaches:
            return inf
        for since, index in self.queue[1:]:
            if self.alike[index] != self.alike[head]:
                continue
            size += self.sizes[index]
            if size >= self.rules.threshold:
                return since
        return inf

    def _close(self, time: float, everything: bool) -> None:
        count = bisect_right(self.queue, (time, len(self.names)))
        ready = [index for _, index in self.queue[:count]]
        while ready:
            batch, full = self._plan(ready)
            if not (everything or full):
                break
            self._execute(batch, time)
            if ready[: len(batch)] == batch:
                ready = ready[len(batch) :]
            else:
                gone = set(batch)
                ready = [index for index in ready if index not in gone]
        self.queue[:count] = [(self.latest[index], index) for index in ready]

    def _plan(self, ready: list[int]) -> tuple[list[int], bool]:
        """The next batch of the ready tensors, and whether it is full."""
        head, threshold = ready[0], self.rules.threshold
        batch, size, full = [head], self.sizes[head], self.sizes[head] >= threshold
        if full:
            self.filled = True
            return batch, True
        for index in ready[1:]:
            if self.alike[index] != self.alike[head]:
                continue
            if size + self.sizes[index] > threshold:
                full = True
                continue
            batch.append(index)
            size += self.sizes[index]
        full |= size >= threshold
        self.filled |= full
        return batch, full

    def _usual(self, names: tuple[int, ...], size: int) -> float:
        """How long a batch with these tensors takes according to the recording."""
        duration = self.known.get(names)
        return self.rules.costs.duration(len(names), size) if duration is None else duration

    def _speed(self) -> float:
        """How much slower than usual batches were in this step: machines have slow periods."""
        recorded = sum(duration for _, _, duration in self.one.batches)
        usual = sum(self._usual(names, size) for names, size, _ in self.one.batches)
        return min(max(recorded / usual, 0.2), 5.0) if usual > 0 else 1.0

    def _execute(self, batch: list[int], time: float) -> None:
        costs = self.rules.costs
        begin = max(time + costs.closing + costs.beginning, self.free + costs.gap)
        names = tuple(sorted([self.names[index] for index in batch]))
        duration = self.speed * self._usual(names, sum([self.sizes[index] for index in batch]))
        if self.rules.slower is not None:
            duration *= self.rules.slower(self.asked, batch)
        self.free = begin + duration
        self.running.append((self.free, batch))
        self.ran.append((begin, self.free))
        self.left -= len(batch)
