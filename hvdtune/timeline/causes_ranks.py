"""Causes of lost time that lie in a rank: stragglers and stalls. Each function is one question."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline import chance, whatif
from hvdtune.timeline.cpus import Load, load
from hvdtune.timeline.fusion import CYCLE, THRESHOLD, number, settings_by_epoch
from hvdtune.timeline.replay import Rules
from hvdtune.timeline.skew import MATTERS, PERSISTENT, pauses
from hvdtune.timeline.verdict import Finding

if TYPE_CHECKING:
    from hvdtune.timeline.report_data import Analysis

MIB = 1 << 20
#: Steps that take longer than so many median steps say nothing about the usual ones.
OUTLIER = 3
#: Waiting for late ranks without one culprit is worth a look from this share of the step on.
TURNS = 0.05


@dataclass
class Case:
    """What the causes are judged by: the analysis and a sample of its usual steps."""

    analysis: Analysis
    costs: whatif.Costs
    threshold: float  # bytes
    cycle: float  # ns
    #: What was found to help the usual steps: (gain, change).
    fixes: list[tuple[float, whatif.Change]] = field(default_factory=list)

    @classmethod
    def of(cls, analysis: Analysis) -> Case:
        """With the settings in force at the end; Horovod's defaults where they are not recorded."""
        by_epoch = settings_by_epoch(analysis.recording)
        last = by_epoch[max(by_epoch)]
        threshold, cycle = number(last, THRESHOLD), number(last, CYCLE)
        return cls(
            analysis,
            whatif.fitted(analysis.joint, analysis.found_steps),
            128 * MIB if np.isnan(threshold) else threshold,
            (1.0 if np.isnan(cycle) else cycle) * 1e6,
        )

    def bench(self, chosen: np.ndarray) -> whatif.Bench:
        """A sample of the steps `chosen`, [S] bool."""
        joint, steps = self.analysis.joint, self.analysis.found_steps
        load = self.load
        rules = Rules(
            self.threshold, self.cycle, self.costs, slowdown=load.slowdown, beside=load.beside
        )
        return whatif.bench(joint, steps, chosen, rules, load)

    @cached_property
    def load(self) -> Load:
        """What the CPUs have to do."""
        return load(self.analysis)

    @cached_property
    def uses_torch(self) -> bool:
        """All ranks use PyTorch's face, as far as recorded: advice may name what only it has."""
        ranks = self.analysis.recording.ranks.values()
        return all("torch" in one.identity.framework for one in ranks)

    @cached_property
    def durations(self) -> np.ndarray:
        """[S] s, mean over the ranks."""
        steps = self.analysis.found_steps
        return np.mean([steps.end[r] - steps.begin[r] for r in steps.end], axis=0) / 1e9

    @cached_property
    def usual(self) -> np.ndarray:
        """[S] bool: neither stalls nor outliers, nor of a transient straggler."""
        numbers = self.analysis.found_steps.number
        chosen = self.durations <= OUTLIER * np.median(self.durations)
        for row in self.rows("transient"):
            chosen = chosen & ~((numbers >= row["from_step"]) & (numbers <= row["to_step"]))
        for row in self.rows("recurring"):
            chosen = chosen & ~self.paused(int(row["rank"]))
        return chosen if chosen.any() else np.ones(len(numbers), bool)

    def rows(self, kind: str) -> list[dict[str, Any]]:
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
        say. One of them may be the last in most steps, if only by a little; what curing it alone
        gives, its own finding says. Late: half as much as the latest, in the median.

        In most steps each of them is later than every other rank, far more often than equal ranks
        happen to be."""
        wide = self.analysis.lateness.pivot(index="rank", columns="step", values="lateness_s")
        typical = wide.median(axis=1)
        limit = max(MATTERS * float(np.median(self.durations)), 0.5 * float(typical.max()))
        slow = [int(rank) for rank in typical.index[typical >= limit]]
        if not 2 <= len(slow) < len(typical):
            return []
        late = wide.index.isin(slow)
        apart = wide[late].min() > wide[~late].max()
        by_chance = chance.apart_by_chance(len(apart), int(apart.sum()), len(slow), len(wide))
        return slow if apart.mean() >= PERSISTENT and by_chance < chance.RARE else []

    def held_up_by(self, ranks: list[int]) -> float:
        """Share of the steps that one of these ranks held up."""
        table = self.analysis.lateness
        own = table[table["rank"].isin(ranks)]
        return float(own.groupby("step")["last"].any().mean())

    @cached_property
    def sample(self) -> whatif.Bench:
        """Of the usual steps. What a change saves in one of them it saves in every step."""
        sample = self.bench(self.usual)
        sample.weight = float(self.durations[self.usual].mean() / self.durations.mean())
        return sample

    def gain(self, change: whatif.Change) -> float:
        """Of a change on the usual steps; remembered as something that helps."""
        gain = self.sample.gain(change)
        self.fixes.append((gain, change))
        return gain

    def gain_beyond(self, change: whatif.Change) -> float:
        """What a change saves on top of the best of those before."""
        gain, best = max(self.fixes, key=lambda fix: fix[0], default=(0.0, whatif.unchanged))
        if gain <= 0:
            return self.sample.gain(change)
        return self.sample.gain(lambda s, r: change(*best(s, r))) - gain

    def position(self, rank: int) -> int:
        """Of a rank among those recorded; -1 if it is not."""
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
        """Share of a part of the waterfall in all steps' time."""
        table = self.analysis.waterfall
        return float(table[name].sum() / table["step_s"].sum())

    def replay_error(self, bench: whatif.Bench) -> float:
        """How far the replay without a change is off, relative."""
        return bench.base / bench.measured - 1 if bench.measured else float("nan")


def milliseconds(seconds: float) -> str:
    """`30.1 ms`, `2.5 s`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def endless_stalls(analysis: Analysis) -> list[Finding]:
    """Stalls that the stall check reported and that no whole step holds: the job never went on, or
    it ended there."""
    found = []
    table = analysis.stalls
    total = _recorded_seconds(analysis)
    for row in table[table["step"] < 0].to_dict("records"):
        who = f"rank {row['rank']}" if row["rank"] >= 0 else "a rank"
        found.append(
            Finding(
                "stalled rank",
                f"The others waited for {who} from {row['time_s']:.1f} s on, and the recording "
                f"ends there: {_who_waits(row['text'])}",
                "See what that rank does: hvdtune stacks, or the Python stack in the stall report. "
                "A rank that skips a collective that the others call never comes.",
                min(1.0, row["seconds"] / total) if total > 0 else 0.0,
                {"stalled_s": float(row["seconds"]), "rank": float(row["rank"])},
            )
        )
    return found[:1]


def _who_waits(report: str) -> str:
    """The line of a stall report that says who waits for whom; the others are stacks and advice."""
    lines = [line.strip() for line in report.splitlines() if line.strip()] or [""]
    return next((line for line in lines if "missing:" in line), lines[0])


def _recorded_seconds(analysis: Analysis) -> float:
    joint = analysis.joint
    ends = [int(view.end.max()) for view in joint.views.values() if len(view.end)]
    marks = [int(v.recording.marks["time"].max(initial=0)) for v in joint.views.values()]
    last = max([*ends, *marks, analysis.origin_ns])
    return (last - analysis.origin_ns) / 1e9


def stalls(case: Case) -> list[Finding]:
    """Ranks that stopped for a long time in a few steps."""
    found = []
    table = case.analysis.stalls
    numbers = case.analysis.found_steps.number
    for rank, rows in table[table["step"] >= 0].groupby("rank"):
        chosen = np.isin(numbers, rows["step"])
        gain = _without(case, [int(rank)], chosen)
        longest = rows.loc[rows["seconds"].idxmax()]
        again = f", {len(rows)} times in all" if len(rows) > 1 else ""
        found.append(
            Finding(
                "stalled rank",
                f"{_capital(case.where(int(rank)))} stopped for {longest['seconds']:.1f} s in step "
                f"{int(longest['step'])} while all others waited{again}.",
                f"Look at what rank {int(rank)} does only now and then: saving a checkpoint, "
                "evaluating, loading or compiling, swapping. Do it on all ranks at the same time, "
                "in the background, or on none.",
                gain,
                {
                    "stalled_s": float(rows["seconds"].sum()),
                    "rank": float(int(rank)),
                    "step": float(longest["step"]),
                    "steps": float(len(rows)),
                },
            )
        )
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _without(case: Case, late: list[int], chosen: np.ndarray) -> float:
    """Expected gain where these ranks are as fast as the others in these steps."""
    positions = [case.position(rank) for rank in late]
    if -1 in positions or len(positions) >= len(case.analysis.joint.views):
        # Not all ranks recorded: what they were waited for is all that is known.
        table = case.analysis.lateness
        numbers = case.analysis.found_steps.number[chosen]
        own = table[table["rank"].isin(late) & table["step"].isin(numbers)]
        return float(own["delay_s"].sum() / case.durations.sum())
    change = whatif.as_fast_as_others(positions)
    return case.gain(change) if chosen is case.usual else case.bench(chosen).gain(change)


def stragglers(case: Case) -> list[Finding]:
    """Ranks that hold the others up in most steps, or in an interval of steps."""
    table = case.analysis.stragglers
    stalled = set(case.analysis.stalls["rank"].tolist())  # told as stalls
    rows = table[table["kind"] == "persistent"].to_dict("records")
    rows += [row for row in case.rows("transient") if row["rank"] not in stalled]
    pausing = [row for row in case.rows("recurring") if row["rank"] not in stalled]
    return [
        *(_straggler(case, row) for row in rows),
        *(_pauses(case, row) for row in pausing),
        *_slow_group(case),
    ]


def _straggler(case: Case, row: dict[str, Any]) -> Finding:
    rank, first, final = int(row["rank"]), int(row["from_step"]), int(row["to_step"])
    late = milliseconds(float(row["typical_late_s"]))
    numbers = case.analysis.found_steps.number
    evidence: dict[str, float | str] = {
        "rank": float(rank),
        "host": str(row["host"]),
        "late_ms": 1e3 * float(row["typical_late_s"]),
        "steps_last_share": float(row["steps_last_share"]),
        "caused_rank_ms": 1e3 * float(row["caused_s"]),
        "from_step": float(first),
        "to_step": float(final),
    }
    if row["kind"] == "persistent":
        evidence["replay_error"] = case.replay_error(case.sample)
        return Finding(
            "persistent straggler",
            f"{_capital(case.where(rank))} holds the others up in "
            f"{100 * float(row['steps_last_share']):.0f} % of the steps: it submits its gradients "
            f"{late} after the first rank.",
            f"Find out why rank {rank} computes longer: its share of the data, its input pipeline, "
            "other processes on its host, its clock speed. Until then give it less work.",
            _without(case, [rank], case.usual),
            evidence,
        )
    chosen = (numbers >= first) & (numbers <= final)
    when = (
        f"steps {first} to {final}, by {late} a step"
        if first < final
        else (f"step {first}, by {late}")
    )
    return Finding(
        "transient straggler",
        f"{_capital(case.where(rank))} held the others up in {when}; before and after it hardly "
        "did.",
        f"Look at what happened on rank {rank}'s host then: another process, a checkpoint, "
        "throttling, a slow shard of the data.",
        _without(case, [rank], chosen),
        evidence,
    )


def _pauses(case: Case, row: dict[str, Any]) -> Finding:
    """A rank that holds the others up again and again, but not in most steps."""
    rank, period = int(row["rank"]), int(row["period"])
    paused = case.paused(rank)
    late = float(row["typical_late_s"])
    table = case.analysis.lateness
    own = table.loc[table["rank"] == rank, "delay_s"].to_numpy()
    share = float(own[paused].sum() / case.durations.sum())
    when = f"every {_ordinal(period)} step" if period else f"{paused.sum()} of {len(paused)} steps"
    action = (
        f"Look at what rank {rank} does every {period} steps: opening the next file of its data, "
        "a checkpoint, an evaluation, a log."
        if period
        else f"Look at what rank {rank} does only now and then: a slow input, a checkpoint, "
        "garbage collection, another program on its CPUs."
    )
    return Finding(
        "recurring straggler",
        f"{_capital(case.where(rank))} holds the others up in {when}, by {milliseconds(late)} "
        f"each time: {100 * share:.0f} % of the time.",
        f"{action} Do it in the background, or on all ranks in the same step.",
        _without(case, [rank], paused),
        {
            "rank": float(rank),
            "host": str(row["host"]),
            "late_ms": 1e3 * late,
            "steps": float(paused.sum()),
            "period_steps": float(period),
            "delay_share": share,
            "chance": float(row["chance"]),
        },
    )


def _ordinal(number: int) -> str:
    """`2nd`, `10th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def _slow_group(case: Case) -> list[Finding]:
    """See Case.slow_group."""
    slow, analysis = case.slow_group, case.analysis
    if not slow:
        return []
    share = case.held_up_by(slow)
    hosts = {analysis.joint.views[r].recording.identity.host for r in slow if case.position(r) >= 0}
    others = {
        view.recording.identity.host
        for rank, view in analysis.joint.views.items()
        if rank not in slow
    }
    where = f", all of host {min(hosts)}," if len(hosts) == 1 and not hosts & others else ""
    names = f"{', '.join(map(str, slow[:-1]))} and {slow[-1]}"
    table = analysis.lateness
    late = float(table.loc[table["rank"].isin(slow), "lateness_s"].median())
    return [
        Finding(
            "persistent straggler",
            f"Ranks {names}{where} hold the others up in {100 * share:.0f} % of the steps: they "
            f"submit their gradients {milliseconds(late)} after the first rank.",
            "Find out what these ranks have in common: their host, their share of the data, their "
            "CPUs. Until then give them less work.",
            _without(case, slow, case.usual),
            {
                "ranks": ", ".join(map(str, slow)),
                "late_ms": 1e3 * late,
                "steps_last_share": share,
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def taking_turns(case: Case) -> list[Finding]:
    """Ranks wait for each other, and it is another one every time."""
    analysis = case.analysis
    table = analysis.waterfall
    ranks = set(analysis.found_steps.number[case.usual].tolist())
    usual = table[table["step"].isin(ranks)]
    share = float(usual["skew_wait_s"].sum() / max(usual["step_s"].sum(), 1e-12))
    persistent = (analysis.stragglers["kind"] == "persistent").any()
    if share < TURNS or persistent or case.slow_group:
        return []
    worst = analysis.stragglers.head(3)
    who = ", ".join(
        f"rank {int(rank)} in {100 * held:.0f} %"
        for rank, held in zip(worst["rank"], worst["steps_last_share"], strict=True)
    )
    return [
        Finding(
            "ranks take turns",
            f"Ranks wait {100 * share:.0f} % of the step for one that is late, and take turns at "
            f"it ({who} of the steps).",
            "Give all ranks the same amount of work in every step (equal batch and sequence "
            "lengths), and leave a CPU to each: fewer ranks × threads than CPUs.",
            case.gain(whatif.evenly()),
            {"skew_share": share, "replay_error": case.replay_error(case.sample)},
        )
    ]
