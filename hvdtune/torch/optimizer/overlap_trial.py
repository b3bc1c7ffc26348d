"""Finds out by trying whether it pays to reduce gradients during the backward pass.

For jobs whose ranks have more threads than the host has CPUs and yet leave CPUs idle, because they
wait for input, devices or each other. All ranks make the same decision at the same step.

    step     from the end of one synchronize() to the end of the next, counted from 1
    look     LOOK steps without overlapping. load: the CPU time that the ranks of a host use, as a
             share of what its CPUs have. exposed: the share of time spent in synchronize(), of the
             rank that spends least there, because the others also wait for that rank
    block    BLOCK steps of one kind. The first is not counted; the block's time is the median
             of the others, summed over the ranks
    pair     one block with overlapping, one without; alternately on off, off on, on off, …, so that
             a drift cancels
    d        ln(time without / time with) of a pair; the mean of all d is the gain

It is tried only if the load is below BUSY and the exposed share is at least EXPOSED; if not, the
next look happens when the job is ten times as old. After LOOKS pairs, overlapping is kept if the
gain is at least WORTH and exceeds its standard error by the factor in LOOKS (Student's t). The
chance of keeping it although it saves nothing is 1 %, of which the early checks spend little. If
it costs much, it is dropped at once.

All ranks decide alike because they use only common knowledge and the sums from `exchange`.
"""

from __future__ import annotations

import math
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FIRST = 5  # steps before the first look, in which one-time start-up happens
LOOK = 8
LATER = 10  # after a look without reason to try, the next one is at this multiple of the age
BUSY = 0.7
EXPOSED = 0.03
BLOCK = 4
LOOKS = {4: 10.0, 6: 5.6, 8: 4.2, 12: 3.1}  # pairs: Student's t, all together 1 %
MOST_PAIRS = max(LOOKS)
WORTH = 0.01
# Losses that end the trial after one pair, and after two.
LOSS, LOSS_OF_TWO = 0.7, 0.2
LUCK = 1.5  # standard errors
STALE = 200  # steps of other optimizers without one of the leader

Exchange = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True)
class Place:
    """This rank, the number of each rank's host, and how many CPUs this host's ranks share."""

    rank: int
    hosts: Sequence[int]
    cpus: int


def judge(differences: Sequence[float]) -> bool | None:
    """Whether to keep overlapping after pairs with these differences; None: go on."""
    pairs = len(differences)
    gain = statistics.fmean(differences)
    if (pairs == 1 and gain < -LOSS) or (pairs == 2 and max(differences) < -LOSS_OF_TWO):
        return False
    if pairs not in LOOKS:
        return None
    error = statistics.stdev(differences) / math.sqrt(pairs)
    if gain >= WORTH and gain > LOOKS[pairs] * error:
        return True
    at_end = max(WORTH, LOOKS[MOST_PAIRS] * error * math.sqrt(pairs / MOST_PAIRS))
    return False if pairs == MOST_PAIRS or gain + LUCK * error < at_end else None


class OverlapTrial:
    """One per job. The first optimizer to step leads: its steps are timed.

    `exchange` sums integers over all ranks; every rank calls it at the same step. `tell` is called
    with each decision. `clock` and `cpu_clock` count nanoseconds.
    """

    def __init__(
        self,
        place: Place,
        exchange: Exchange,
        tell: Callable[[str], None],
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        cpu_clock: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._place = place
        self._exchange = exchange
        self._tell = tell
        self._clock = clock
        self._cpu_clock = cpu_clock
        self.overlaps = False
        self.decided = False
        self._leader: weakref.ref[object] | None = None
        self._others = 0  # steps of others since the leader's last
        self._step = 1  # the step in which the ranks agreed to try
        self._look = FIRST + 1  # the step with which the look begins
        self._base = 0  # the first step of the first pair; 0 before
        self._began = self._cpu_began = self._cpu_ended = 0
        self._entered = self._ended = self._waited = 0
        self._durations: list[int] = []
        self._blocks: list[int] = []
        self._differences: list[float] = []

    @property
    def under_way(self) -> bool:
        """Whether steps with and without overlapping alternate now."""
        return self._base > 0 and not self.decided

    def begin(self, optimizer: object, spoils: Callable[[], bool]) -> bool:
        """Call this when synchronize() begins. Returns whether the next backward pass overlaps.

        `spoils` tells whether gradients are changed between the backward pass and this call;
        overlapping would lose that change. It is asked now and then.
        """
        if self.decided or not self._is_led_by(optimizer):
            return self.overlaps
        self._step += 1
        if self._base:
            self._in_pairs(spoils)
        elif self._step >= self._look:
            if self._step == self._look + LOOK:
                self._judge_look(spoils)
            self._entered = self._clock()
        return self.overlaps

    def end(self, optimizer: object) -> None:
        """Call this when synchronize() has ended without an error."""
        if self.decided or self._step < self._look - 1 or not self._leads(optimizer):
            return
        now = self._clock()
        if not self._base:
            if self._step == self._look - 1:
                self._began, self._cpu_began, self._waited = now, self._cpu_clock(), 0
            else:
                self._waited += now - self._entered
                self._cpu_ended = self._cpu_clock()
        elif self._step >= self._base:
            place = (self._step - self._base) % BLOCK
            if place:
                self._durations.append(now - self._ended)
            if place == BLOCK - 1:
                self._blocks.append(int(statistics.median(self._durations)))
                self._durations = []
        self._ended = now

    def _leads(self, optimizer: object) -> bool:
        return self._leader is not None and self._leader() is optimizer

    def _is_led_by(self, optimizer: object) -> bool:
        if self._leader is None:
            self._leader = weakref.ref(optimizer)
        if self._leads(optimizer):
            self._others = 0
            return True
        self._others += 1
        if self._others > STALE:
            self._decide(
                False, "not tried to the end: the optimizer it began with is no longer used"
            )
        return False

    def _judge_look(self, spoils: Callable[[], bool]) -> None:
        place, size = self._place, len(self._place.hosts)
        wall = max(1, self._ended - self._began)
        table = [0] * (2 * size + 1)
        load = (self._cpu_ended - self._cpu_began) / (wall * max(1, place.cpus))
        table[place.rank] = round(1e6 * load)
        table[size + place.rank] = round(1e6 * self._waited / wall)
        table[-1] = int(spoils())
        *shares, spoiled = self._exchange(table)
        loads: dict[int, float] = {}
        for host, share in zip(place.hosts, shares, strict=False):
            loads[host] = loads.get(host, 0.0) + share / 1e6
        busiest, exposed = max(loads.values()), min(shares[size:]) / 1e6
        percent = f"{100 * busiest:.0f} % of the CPUs are used"
        if spoiled:
            self._decide(False, "not tried: gradients are changed between backward() and step()")
        elif busiest < BUSY and exposed >= EXPOSED:
            self._base = self._step + 1
            self.overlaps = _overlaps_in(0)
            self._tell(f"being tried since step {self._base}: only {percent}")
        else:
            why = (
                percent
                if busiest >= BUSY
                else f"steps wait for it {100 * exposed:.1f} % of the time"
            )
            self._tell(f"not tried at step {self._step}: {why}")
            self._look = max(self._look + LOOK + 1, LATER * (self._look - 1) + 1)

    def _in_pairs(self, spoils: Callable[[], bool]) -> None:
        done = self._step - self._base
        if done and done % (2 * BLOCK) == 0 and self._judge_pair(spoils):
            return
        self.overlaps = _overlaps_in((done + 1) // BLOCK)

    def _judge_pair(self, spoils: Callable[[], bool]) -> bool:
        """Note the times of a pair. Returns whether it was the last."""
        pair = len(self._differences)
        whole = len(self._blocks) == 2
        times = self._blocks if whole else [0, 0]
        *summed, spoiled = self._exchange([*times, int(not whole or spoils())])
        self._blocks = []
        if spoiled or min(summed) <= 0:
            self._decide(False, "not tried to the end: steps failed, or changed gradients")
            return True
        first, second = summed
        on, off = (first, second) if _overlaps_in(2 * pair) else (second, first)
        self._differences.append(math.log(off / on))
        kept = judge(self._differences)
        if kept is None:
            return False
        share = 1 - math.exp(-statistics.fmean(self._differences))
        change = f"{100 * abs(share):.1f} % {'faster' if share >= 0 else 'slower'}"
        tried = f"tried from step {self._base} to {self._step - 1}, {change}"
        self._decide(kept, f"{tried}, {'kept' if kept else 'left off'}")
        return True

    def _decide(self, overlaps: bool, text: str) -> None:
        self.decided, self.overlaps = True, overlaps
        self._tell(text)


def _overlaps_in(block: int) -> bool:
    return (block // 2 + block) % 2 == 0
