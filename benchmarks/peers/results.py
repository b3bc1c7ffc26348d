"""All figures of a comparison: storing them, summarising them, and JSON and back.

======== =====================================================================================
median   of a round: the middle of its calls' times; of a peer: the middle of its rounds' medians
p95      nearest-rank 95th percentile of all its calls of all rounds
mean     of all its calls of all rounds
ratio    the middle, over rounds, of (the peer's median / hvdtune's median of the same round):
         a disturbance that slows the whole machine for minutes slows both, and cancels
bound    T_bound of `hvdtune.bench.metrics.memory_bound_seconds` for an allreduce of all bytes of
         the work, with the rates of memory found in the same run; none below 64 KiB
no cache the bound with the rates of the largest arrays measured in the run, which no cache holds:
         the bound if all staged data passes through main memory
share    bound / median: above 1 is possible if a system reads its peers' arrays in place
best     bound / the least of its rounds' medians. The bound's rates are also the best of all
         rounds: this compares like with like if the machine's speed differs between rounds
======== =====================================================================================

All times are in seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hvdtune.bench import memory, metrics
from hvdtune.bench.memory import MemoryCurve, MemoryPoint

OWN = "hvdtune"


@dataclass(frozen=True)
class Turn:
    """One peer's calls of one work in one round."""

    round: int
    calls: int
    median: float


@dataclass
class Case:
    """One peer, one number of ranks, one work."""

    peer: str
    ranks: int
    work: str
    turns: list[Turn] = field(default_factory=list)
    p95: float = 0.0
    mean: float = 0.0
    ratio: float | None = None
    share: float | None = None

    @property
    def median(self) -> float:
        """The middle of the rounds' medians."""
        return statistics.median(turn.median for turn in self.turns)

    @property
    def best(self) -> float:
        """The least of the rounds' medians."""
        return min(turn.median for turn in self.turns)


@dataclass
class Comparison:
    """A whole run. `peers`: key to title, version and settings by number of ranks."""

    machine: dict[str, Any]
    options: dict[str, Any]
    works: dict[str, dict[str, Any]]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    memory: MemoryCurve | None = None
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def case(self, peer: str, ranks: int, work: str) -> Case | None:
        """The results of a case, or None."""
        for case in self.cases:
            if (case.peer, case.ranks, case.work) == (peer, ranks, work):
                return case
        return None

    def bound(self, ranks: int, work: str) -> float | None:
        """T_bound in seconds, or None if it does not apply."""
        size = self.works[work]["size_bytes"]
        if self.memory is None or size < memory.LEAST_SIZE:
            return None
        rates = self.memory.rates(size)
        return metrics.memory_bound_seconds("allreduce", size, ranks, *rates)

    def bound_without_cache(self, ranks: int, work: str) -> float | None:
        """The same with the rates of the largest arrays measured, or None."""
        if self.memory is None or self.bound(ranks, work) is None:
            return None
        last = self.memory.points[-1]
        size = self.works[work]["size_bytes"]
        rates = last.copy_rate, last.stream_rate
        return metrics.memory_bound_seconds("allreduce", size, ranks, *rates)

    def best_peer(self, ranks: int, work: str) -> tuple[Case, float] | None:
        """(the fastest peer's case, hvdtune's time / the peer's), by the paired ratio."""
        ratios = [
            (case.ratio, case)
            for case in self.cases
            if case.peer != OWN and (case.ranks, case.work) == (ranks, work) and case.ratio
        ]
        if not ratios:
            return None
        ratio, case = min(ratios, key=lambda pair: pair[0])
        return case, 1 / ratio

    def to_json(self) -> dict[str, Any]:
        """Plain values; medians and bounds are spelled out for readers of the file."""
        cases = [{**asdict(case), "median": case.median} for case in self.cases]
        bounds = [
            {"ranks": ranks, "work": work, "seconds": self.bound(ranks, work)}
            for ranks in sorted({case.ranks for case in self.cases})
            for work in self.works
        ]
        return {
            **{name: getattr(self, name) for name in ("machine", "options", "works", "peers")},
            "memory": None if self.memory is None else asdict(self.memory),
            "bounds": bounds,
            "cases": cases,
            "left_out": self.left_out,
            "seconds": self.seconds,
        }


def from_json(values: dict[str, Any]) -> Comparison:
    """The comparison that `to_json` wrote."""
    cases = [
        Case(
            peer=case["peer"],
            ranks=case["ranks"],
            work=case["work"],
            turns=[Turn(**turn) for turn in case["turns"]],
            **{name: case[name] for name in ("p95", "mean", "ratio", "share")},
        )
        for case in values["cases"]
    ]
    return Comparison(
        **{name: values[name] for name in ("machine", "options", "works", "peers")},
        cases=cases,
        memory=None if values["memory"] is None else curve_from_json(values["memory"]),
        left_out=values["left_out"],
        seconds=values["seconds"],
    )


def curve_from_json(values: dict[str, Any]) -> MemoryCurve:
    """The curve that `dataclasses.asdict` made plain."""
    return MemoryCurve(values["workers"], tuple(MemoryPoint(**point) for point in values["points"]))


def best_curve(curves: Sequence[MemoryCurve]) -> MemoryCurve:
    """The highest rates of several measurements, so that a disturbed one does not count."""
    points = zip(*(curve.points for curve in curves), strict=True)
    return MemoryCurve(
        curves[0].workers,
        tuple(
            MemoryPoint(
                same[0].size_bytes,
                max(point.copy_rate for point in same),
                max(point.stream_rate for point in same),
            )
            for same in points
        ),
    )


class Collector:
    """Takes the calls' times as they arrive and fills a comparison's cases."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self._times: dict[tuple[str, int, str], list[np.ndarray]] = {}

    def take(self, peer: str, ranks: int, work: str, number: int, times: np.ndarray) -> None:
        """Add one peer's calls of one work in round `number`."""
        # Everything is computed before anything is kept: Ctrl-C leaves no half of a case.
        turn = Turn(number, len(times), float(np.median(times)))
        earlier = self._times.get((peer, ranks, work), [])
        pooled = np.sort(np.concatenate([*earlier, times]))
        p95, mean = float(metrics.percentile(pooled.tolist(), 0.95)), float(pooled.mean())
        case = self.comparison.case(peer, ranks, work)
        if case is None:
            case = Case(peer, ranks, work, [turn], p95, mean)
            self.comparison.cases.append(case)
        else:
            case.turns.append(turn)
            case.p95, case.mean = p95, mean
        self._times[peer, ranks, work] = [*earlier, times]

    def finish(self) -> None:
        """Compute the figures that relate cases to each other; call it again after more calls."""
        for case in self.comparison.cases:
            own = self.comparison.case(OWN, case.ranks, case.work)
            case.ratio = None if own is None else paired_ratio(case.turns, own.turns)
            bound = self.comparison.bound(case.ranks, case.work)
            case.share = None if bound is None else bound / case.median


def paired_ratio(turns: Sequence[Turn], own: Sequence[Turn]) -> float | None:
    """The middle of turns' medians over `own` medians of the same rounds; None without any."""
    base = {turn.round: turn.median for turn in own}
    ratios = [turn.median / base[turn.round] for turn in turns if base.get(turn.round)]
    return statistics.median(ratios) if ratios else None
