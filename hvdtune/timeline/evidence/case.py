"""The context in which causes of lost time are judged."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline import schema
from hvdtune.timeline.analysis import chance
from hvdtune.timeline.analysis.cpus import Load, load
from hvdtune.timeline.analysis.fusion import CYCLE, THRESHOLD, number, settings_by_epoch
from hvdtune.timeline.analysis.skew import MATTERS, PERSISTENT, pauses
from hvdtune.timeline.analysis.trend import Change, change
from hvdtune.timeline.record import host_counters
from hvdtune.timeline.record.host_counters import Threads
from hvdtune.timeline.record.layout import Mark
from hvdtune.timeline.replay import changes
from hvdtune.timeline.replay.play import Rules

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.answers import Analysis
    from hvdtune.timeline.structure.owners import Family

MIB = 1 << 20
#: Faces with calls that return before the operation is done.
WITH_HANDLES = frozenset({"torch", "numpy"})
#: Steps that take longer than this many median steps are not usual steps.
OUTLIER = 3
#: If there are this many long pauses of other ranks, a stall is just the longest of many pauses.
TAIL = 3


@dataclass
class Case:
    """The context of all causes: the analysis and a sample of its usual steps."""

    analysis: Analysis
    costs: changes.Costs
    threshold: float  # bytes
    cycle: float  # ns
    #: Changes that help the usual steps, as found so far: (gain, change).
    fixes: list[tuple[float, changes.Change]] = field(default_factory=list)
    #: The change to better settings; None if none are better.
    better_settings: tuple[float, changes.Change] | None = None

    @classmethod
    def of(cls, analysis: Analysis) -> Case:
        """A case with the settings in force at the end; Horovod's defaults if unknown."""
        by_epoch = settings_by_epoch(analysis.recording)
        last = by_epoch[max(by_epoch)]
        threshold, cycle = number(last, THRESHOLD), number(last, CYCLE)
        return cls(
            analysis,
            changes.fitted(analysis.joint, analysis.found_steps),
            128 * MIB if np.isnan(threshold) else threshold,
            (1.0 if np.isnan(cycle) else cycle) * 1e6,
        )

    def bench(self, chosen: np.ndarray) -> changes.Bench:
        """A sample of the steps `chosen`, [S] bool."""
        joint, steps = self.analysis.joint, self.analysis.found_steps
        load = self.load
        rules = Rules(
            self.threshold, self.cycle, self.costs, slowdown=load.slowdown, beside=load.beside
        )
        return changes.bench(joint, steps, chosen, rules, load)

    @cached_property
    def load(self) -> Load:
        """The work of the CPUs."""
        return load(self.analysis)

    @cached_property
    def threads(self) -> dict[int, Threads]:
        """The readings of ranks' threads and CPUs during the steps, for ranks that have any."""
        steps = self.analysis.found_steps
        begin = min(int(own.min()) for own in steps.begin.values())
        end = max(int(own.max()) for own in steps.end.values())
        return host_counters.threads(self.analysis.recording, begin, end)

    @cached_property
    def faces(self) -> frozenset[str]:
        """The faces of hvdtune that the program uses, see Identity.faces; empty if unknown."""
        ranks = self.analysis.recording.ranks.values()
        return frozenset[str]().union(*(one.identity.faces for one in ranks))

    @cached_property
    def uses_torch(self) -> bool:
        """Whether all recorded ranks use PyTorch's face: then advice may name its features."""
        ranks = self.analysis.recording.ranks.values()
        return "keras" not in self.faces and all("torch" in one.identity.faces for one in ranks)

    @cached_property
    def has_handles(self) -> bool | None:
        """Whether the program's face has calls that return before the operation is done, such as
        allreduce_async: then advice may name them. None if the face is unknown."""
        if not self.faces:
            return None
        return "keras" not in self.faces and bool(self.faces & WITH_HANDLES)

    @cached_property
    def more_passes(self) -> int:
        """Twice the backward passes that the program makes for each reduction now."""
        return 2 * int(self.program.get("passes", 1))

    @cached_property
    def program(self) -> dict[str, Any]:
        """The program's last description of how it reduces gradients
        (torch/optimizer/description.py).

        {} if there is none: it has no DistributedOptimizer, or an earlier version recorded it.
        """
        for one in self.analysis.recording.ranks.values():
            marks = one.marks[one.marks["kind"] == int(Mark.PROGRAM)]
            texts = [one.texts[at] for at in marks["text"] if at < len(one.texts)]
            with contextlib.suppress(ValueError):
                told = json.loads(texts[-1]) if texts else None
                if isinstance(told, dict):
                    return told
        return {}

    @cached_property
    def gradients(self) -> tuple[int, ...]:
        """The gradients' names (ids of the reference rank)."""
        return tuple(at for one in self.analysis.owners if one.gradients for at in one.names)

    @cached_property
    def durations(self) -> np.ndarray:
        """[S] s, each step's duration, mean over the ranks."""
        steps = self.analysis.found_steps
        return np.mean([steps.end[r] - steps.begin[r] for r in steps.end], axis=0) / 1e9

    @cached_property
    def computing(self) -> dict[int, np.ndarray]:
        """Rank → [S] s for which it computes in each step."""
        table = self.analysis.waterfall
        return {int(rank): own["compute_s"].to_numpy() for rank, own in table.groupby("rank")}

    @cached_property
    def communicating(self) -> np.ndarray:
        """[S] s for which ranks are blocked, but not by a late rank; mean over the ranks."""
        table = self.analysis.waterfall
        return (table["exposed_s"] - table["skew_wait_s"]).groupby(table["step"]).mean().to_numpy()

    @cached_property
    def change(self) -> Change | None:
        """How steps become longer along the run, and what grows; None if they do not."""
        return change(self.durations, self.computing, self.communicating)

    @cached_property
    def drifting(self) -> tuple[int, ...]:
        """Ranks that hold the others up because they compute longer and longer, which explains at
        least half of their delay. They are reported as a drift."""
        found = self.change
        if found is None or found.course.kind != "drift" or found.everywhere:
            return ()
        table = self.analysis.lateness
        grown = found.course.level - found.course.level[0]
        delays = {r: table.loc[table["rank"] == r, "delay_s"].to_numpy() for r in found.ranks}
        late = np.maximum.reduce([delays[r] for r in found.ranks]) if found.ranks else np.zeros(1)
        explained = np.minimum(late, grown).sum() >= late.sum() / 2
        return found.ranks if explained else ()

    def members(self, one: Family) -> list[int]:
        """The ranks of an operation's process set: its last list, or else those that waited."""
        ranks = self.analysis.recording.ranks.values()
        every = [of for rank in ranks for of in rank.sets if of.process_set == one.process_set]
        return sorted(every[-1].ranks if every else one.busy)

    @cached_property
    def elsewhere(self) -> dict[int, float]:
        """Rank → s a step for which it is busy with operations of process sets that do not include
        all ranks, less that of the least busy rank."""
        busy = dict.fromkeys(self.analysis.joint.views, 0.0)
        size = self.analysis.recording.size
        for one in self.analysis.owners:
            if one.process_set and one.waited_for and len(self.members(one)) < size:
                for rank, seconds in one.busy.items():
                    busy[rank] += seconds
        least = min(busy.values(), default=0.0) if len(busy) == size else 0.0
        return {rank: seconds - least for rank, seconds in busy.items()}

    def delay_by(self, ranks: Sequence[int]) -> float:
        """How long these ranks hold a step up on average, s."""
        table = self.analysis.lateness
        own = table[table["rank"].isin(ranks)]
        return float(own.groupby("step")["delay_s"].max().mean()) if len(own) else 0.0

    def late_by_operations(self, ranks: Sequence[int]) -> bool:
        """Whether these ranks' operations without the others explain at least half of their delay.
        Then the operations are reported, not the ranks."""
        busy = np.mean([self.elsewhere.get(rank, 0.0) for rank in ranks] or [0.0])
        return bool(0 < self.delay_by(ranks) <= 2 * busy)

    @cached_property
    def usual(self) -> np.ndarray:
        """[S] bool: steps without a stall, a transient straggler or a pause, and not outliers."""
        numbers = self.analysis.found_steps.number
        chosen = self.durations <= OUTLIER * np.median(self.durations)
        for row in self.rows("transient"):
            chosen = chosen & ~((numbers >= row["from_step"]) & (numbers <= row["to_step"]))
        for row in self.rows("recurring"):
            chosen = chosen & ~self.paused(int(row["rank"]))
        return chosen if chosen.any() else np.ones(len(numbers), bool)

    @cached_property
    def stalled(self) -> tuple[int, ...]:
        """Ranks that are reported as stalled. If several other steps (TAIL) are held up for an
        eighth of that time or more, a stall is the end of a long tail and is blamed on no rank,
        unless that rank causes more than equal ranks do."""
        stalls, table = self.analysis.stalls, self.analysis.lateness
        told = []
        for rank, rows in stalls[stalls["step"] >= 0].groupby("rank"):
            others = table.loc[table["last"] & ~table["step"].isin(rows["step"]), "delay_s"]
            row = self.analysis.stragglers["rank"] == rank
            by_chance = float(self.analysis.stragglers.loc[row, "chance"].min())
            alone = (others >= rows["seconds"].max() / 8).sum() < TAIL
            if alone or by_chance < chance.RARE:
                told.append(int(rank))
        return tuple(told)

    def rows(self, kind: str) -> list[schema.Straggler]:
        """Rows of stragglers() of one kind, without those of slow_group."""
        table = self.analysis.stragglers
        chosen = (table["kind"] == kind) & ~table["rank"].isin(self.slow_group)
        return list(table[chosen].to_dict("records"))

    def paused(self, rank: int) -> np.ndarray:
        """[S] bool: the steps that the rank held up by much."""
        table = self.analysis.lateness
        own = table[table["rank"] == rank]
        return pauses(own["last"].to_numpy(), own["delay_s"].to_numpy())

    @cached_property
    def slow_group(self) -> list[int]:
        """Several ranks, but not all, that are late together in most steps: ranks of a slow host,
        for example. A rank is late if its median lateness is at least half that of the latest rank.

        In most steps each of them is later than every rank outside the group, far more often than
        among equal ranks."""
        wide = self.analysis.lateness.pivot(index="rank", columns="step", values="lateness_s")
        typical = wide.median(axis=1)
        limit = max(MATTERS * float(np.median(self.durations)), 0.5 * float(typical.max()))
        slow = [int(rank) for rank in typical.index[typical >= limit]]
        if not 2 <= len(slow) < len(typical):
            return []
        late = wide.index.isin(slow)
        apart = wide[late].min() > wide[~late].max()
        alike = chance.neighbours(wide.to_numpy())
        steps, seen = len(apart) / alike, apart.sum() / alike
        by_chance = chance.apart_by_chance(int(steps), int(seen), len(slow), len(wide))
        return slow if apart.mean() >= PERSISTENT and by_chance < chance.RARE else []

    def held_up_by(self, ranks: list[int]) -> float:
        """Share of the steps that one of these ranks held up."""
        table = self.analysis.lateness
        own = table[table["rank"].isin(ranks)]
        return float(own.groupby("step")["last"].any().mean())

    @cached_property
    def sample(self) -> changes.Bench:
        """A sample of the usual steps. A change is taken to save the same in every step."""
        sample = self.bench(self.usual)
        sample.weight = float(self.durations[self.usual].mean() / self.durations.mean())
        return sample

    def gain(self, change: changes.Change) -> float:
        """The gain of a change in the usual steps; the change is remembered in `fixes`."""
        gain = self.sample.gain(change)
        self.fixes.append((gain, change))
        return gain

    def gain_beyond(self, change: changes.Change) -> float:
        """The gain of a change on top of the best one remembered so far."""
        gain, best = max(self.fixes, key=lambda fix: fix[0], default=(0.0, changes.unchanged))
        if gain <= 0:
            return self.sample.gain(change)
        return self.sample.gain(lambda s, r: change(*best(s, r))) - gain

    def position(self, rank: int) -> int:
        """The rank's index among the recorded ranks; -1 if it was not recorded."""
        ranks = list(self.analysis.joint.views)
        return ranks.index(rank) if rank in ranks else -1

    def where(self, rank: int) -> str:
        """`rank 3 (host b, pid 4711)`, as far as recorded."""
        view = self.analysis.joint.views.get(rank)
        if view is None:
            return f"rank {rank}"
        identity = view.recording.identity
        return f"rank {rank} (host {identity.host}, pid {identity.pid})"

    def part(self, name: str) -> float:
        """The share of a part of the waterfall in all steps' time."""
        table = self.analysis.waterfall
        return float(table[name].sum() / table["step_s"].sum())

    def replay_error(self, bench: changes.Bench) -> float:
        """The relative error of the replay without a change."""
        return bench.base / bench.measured - 1 if bench.measured else float("nan")


def milliseconds(seconds: float) -> str:
    """`30.1 ms`, `2.5 s`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
