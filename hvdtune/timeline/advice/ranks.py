"""Causes of lost time that lie in a rank: stragglers and stalls. Each function is one question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline import chance, whatif
from hvdtune.timeline.advice import pattern
from hvdtune.timeline.advice.case import Case, milliseconds
from hvdtune.timeline.advice.finding import Finding
from hvdtune.timeline.words import ordinal

if TYPE_CHECKING:
    from hvdtune.timeline.report_data import Analysis

#: Waiting for late ranks without one culprit is worth a look from this share of the step on.
TURNS = 0.05


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
    table = table[(table["step"] >= 0) & table["rank"].isin(case.stalled)]
    for rank, rows in table.groupby("rank"):
        chosen = np.isin(numbers, rows["step"])
        gain = _without(case, [int(rank)], chosen)
        longest = rows.loc[rows["seconds"].idxmax()]
        again = f", {len(rows)} times in all" if len(rows) > 1 else ""
        period = chance.period(np.sort(rows["step"].to_numpy()))
        again += f" (every {ordinal(period)} step)" if period else ""
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
                    "pattern": "periodic" if period else "random" if len(rows) > 2 else "once",
                    "delay_share": pattern.share(case, rows["seconds"].to_numpy()),
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
    stalled = set(case.stalled)  # told as stalls
    table = table[~table["rank"].isin(case.drifting)]  # told as drifts
    rows = table[table["kind"] == "persistent"].to_dict("records")
    told = stalled | set(case.drifting)
    rows += [row for row in case.rows("transient") if row["rank"] not in told]
    pausing = [row for row in case.rows("recurring") if row["rank"] not in told]
    return [
        *(_straggler(case, row) for row in rows),
        *(_pauses(case, row) for row in pausing),
        *_slow_group(case),
    ]


def _straggler(case: Case, row: dict[str, Any]) -> Finding:
    rank, first, final = int(row["rank"]), int(row["from_step"]), int(row["to_step"])
    late = milliseconds(float(row["typical_late_s"]))
    numbers = case.analysis.found_steps.number
    delays = pattern.held_up(case, [rank])
    share = pattern.share(case, delays)
    once = "once" if first == final else "interval"
    evidence: dict[str, float | str] = {
        "pattern": "always" if row["kind"] == "persistent" else once,
        "delay_share": share,
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
            f"{100 * float(row['steps_last_share']):.0f} % of the steps, by "
            f"{milliseconds(pattern.by(delays))} on average: {100 * share:.0f} % of the time.",
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
    when = f"every {ordinal(period)} step" if period else f"{paused.sum()} of {len(paused)} steps"
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
            "pattern": "periodic" if period else "random",
            "rank": float(rank),
            "host": str(row["host"]),
            "late_ms": 1e3 * late,
            "steps": float(paused.sum()),
            "period_steps": float(period),
            "delay_share": share,
            "chance": float(row["chance"]),
        },
    )


def _slow_group(case: Case) -> list[Finding]:
    """See Case.slow_group."""
    slow, analysis = case.slow_group, case.analysis
    if not slow or set(slow) == set(case.drifting):
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
    delays = pattern.held_up(case, slow)
    return [
        Finding(
            "persistent straggler",
            f"Ranks {names}{where} hold the others up in {100 * share:.0f} % of the steps, by "
            f"{milliseconds(pattern.by(delays))} on average: "
            f"{100 * pattern.share(case, delays):.0f} % of the time.",
            "Find out what these ranks have in common: their host, their share of the data, their "
            "CPUs. Until then give them less work.",
            _without(case, slow, case.usual),
            {
                "pattern": "always",
                "delay_share": pattern.share(case, delays),
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
    delays = pattern.held_up(case, list(analysis.joint.arrivals)) * case.usual
    computing = np.array(list(case.computing.values()))[:, case.usual]
    spread = float(np.sqrt(computing.var(axis=0).mean()))
    order = pattern.turns(case)
    return [
        Finding(
            "ranks take turns",
            _turns_sentence(case, order, delays, share, spread),
            "Give all ranks the same amount of work in every step (equal batch and sequence "
            "lengths), and leave a CPU to each: fewer ranks × threads than CPUs.",
            case.gain(whatif.evenly()),
            {
                "pattern": "alternating" if order else "random",
                "delay_share": pattern.share(case, delays),
                "spread_ms": 1e3 * spread,
                "skew_share": share,
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def _turns_sentence(
    case: Case, order: list[int], delays: np.ndarray, share: float, spread: float
) -> str:
    """`delays`: [S] s that steps were held up; `spread`: of the computing of a step, s."""
    late = milliseconds(pattern.by(delays))
    if order:
        return (
            f"Ranks are late in turn, by {late} on average: first rank {order[0]}, then rank "
            f"{', '.join(map(str, order[1:]))}, and again. The others wait {100 * share:.0f} % of "
            "the step for it."
        )
    often = float((delays > 0).sum() / case.usual.sum())
    worst = case.analysis.stragglers.head(3)
    who = ", ".join(
        f"rank {int(rank)} in {100 * held:.0f} %"
        for rank, held in zip(worst["rank"], worst["steps_last_share"], strict=True)
    )
    return (
        f"Ranks wait {100 * share:.0f} % of the step for one that is late, and take turns at it "
        f"({who} of the steps): what they compute in a step differs by {milliseconds(spread)} "
        f"(standard deviation), and the last one holds {100 * often:.0f} "
        f"% of the steps up, by {late} on average."
    )
