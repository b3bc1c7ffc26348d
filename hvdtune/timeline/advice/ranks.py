"""Causes of lost time in a rank: stragglers and stalls. Each function is one question."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline import schema
from hvdtune.timeline.advice import cpus, phases
from hvdtune.timeline.analysis import chance
from hvdtune.timeline.analysis.phases import where
from hvdtune.timeline.analysis.skew import PERSISTENT
from hvdtune.timeline.evidence import cure, pattern
from hvdtune.timeline.evidence.case import Case, milliseconds
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.words import ordinal

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.answers import Analysis

#: An excess in one of these phases is not work on data that others could take over.
OWN = frozenset({"input", "before", "between", "evaluation", "checkpoint", "update"})
#: A rank for which no other seems to wait is reported if its excess of computing, and the gain of
#: curing it, are this share of the step.
LONGER = 0.05


def endless_stalls(analysis: Analysis) -> list[Finding]:
    """Stalls after which nothing went on: the job still hung, or ended there."""
    found = []
    total = _recorded_seconds(analysis)
    for row in analysis.stalls.to_dict("records"):
        if row["ended"]:
            continue
        who = f"rank {row['rank']}" if row["rank"] >= 0 else "a rank"
        found.append(
            Finding(
                "stalled rank",
                f"The others waited for {who} from {row['time_s']:.1f} s on, until the recording "
                f"ended: {_who_waits(row['text'], int(row['rank']))}",
                "See what that rank does: hvdtune stacks, or the Python stack in the stall report. "
                "A rank that skips a collective keeps the others waiting for it forever.",
                min(1.0, row["seconds"] / total) if total > 0 else 0.0,
                {"stalled_s": float(row["seconds"]), "rank": float(row["rank"])},
            )
        )
    return found[:1]


def _who_waits(report: str, rank: int) -> str:
    """The line of a stall report that says which ranks wait for this rank, or else which wait for
    which; the other lines are stacks and advice."""
    lines = [line.strip() for line in report.splitlines() if line.strip()] or [""]
    own = re.compile(rf"missing: ranks? {rank}\b")
    lines = [line for line in lines if own.search(line)] or lines
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
        cured = cure.of_ranks(case, [int(rank)], chosen, moves=False).expected
        longest = rows.loc[rows["seconds"].idxmax()]
        again = f", {len(rows)} times in all" if len(rows) > 1 else ""
        period = chance.period(np.sort(rows["step"].to_numpy()))
        again += f" (every {ordinal(period)} step)" if period else ""
        found.append(
            Finding(
                "stalled rank",
                *_in_phase(
                    case,
                    [int(rank)],
                    chosen,
                    f"{_capital(case.where(int(rank)))} stopped for {longest['seconds']:.1f} s in "
                    f"step {int(longest['step'])} while all others waited{again}.",
                    f"Look at what rank {int(rank)} does only now and then: saving a checkpoint, "
                    "evaluating, loading or compiling, swapping. Do it on all ranks at the same "
                    "time, in the background, or on none.",
                ),
                cured.gain,
                {
                    "pattern": "periodic" if period else "random" if len(rows) > 2 else "once",
                    "delay_share": pattern.share(case, rows["seconds"].to_numpy()),
                    "stalled_s": float(rows["seconds"].sum()),
                    "rank": float(int(rank)),
                    "step": float(longest["step"]),
                    "steps": float(len(rows)),
                },
                cured.between,
            )
        )
    return found


def _in_phase(
    case: Case, late: list[int], chosen: np.ndarray, text: str, do: str
) -> tuple[str, str]:
    """The sentence and action, with the phase in which these ranks take longer than the others in
    the steps `chosen`, [S] bool; unchanged if no phase is known."""
    where = phases.told(case, case.analysis.found_steps.number[chosen], late)
    return (f"{text} {where.sentence}", where.action) if where else (text, do)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cured(case: Case, late: list[int], chosen: np.ndarray, *, hidden: bool = False) -> cure.Cure:
    """See cure.of_ranks; only work on data can move to other ranks."""
    steps = case.analysis.found_steps.number[chosen]
    moves = where(case.analysis, steps, late) not in OWN
    return cure.of_ranks(case, late, chosen, moves=moves, hidden=hidden)


def stragglers(case: Case) -> list[Finding]:
    """Ranks that hold the others up in most steps, or in an interval of steps."""
    table = case.analysis.stragglers
    stalled = set(case.stalled)  # reported as stalls
    table = table[~table["rank"].isin(case.drifting)]  # reported as drifts
    rows = table[table["kind"] == "persistent"].to_dict("records")
    rows = [row for row in rows if not case.late_by_operations([int(row["rank"])])]
    told = stalled | set(case.drifting)
    rows += [row for row in case.rows("transient") if row["rank"] not in told]
    rows = [row for row in rows if not _has_no_cpu(case, row)]
    pausing = [row for row in case.rows("recurring") if row["rank"] not in told]
    pausing = [row for row in pausing if not _has_no_cpu(case, row)]
    return [
        *(_straggler(case, row) for row in rows),
        *(_pauses(case, row) for row in pausing),
        *_slow_group(case),
        *_longest(case),
    ]


def _has_no_cpu(case: Case, row: schema.Straggler) -> bool:
    """See cpus.explain, in the steps that the rank holds up."""
    return cpus.explain(
        case, [int(row["rank"])], float(row["typical_late_s"]) / float(np.median(case.durations))
    )


def _longest(case: Case) -> list[Finding]:
    """A rank that computes longer than every other in most steps although no other seems to wait
    for it: the others still compute when communication could begin, and then are blocked by all of
    it at the end. No finding if ranks are reported as late."""
    table = case.analysis.stragglers
    ranks = [rank for rank in case.analysis.joint.views if rank in case.computing]
    if case.slow_group or table["kind"].astype(bool).any():
        return []
    if len(ranks) < max(2, case.analysis.recording.size):
        return []
    wide = np.array([case.computing[rank] for rank in ranks])
    at = int(np.argmax(np.median(wide, axis=1)))
    longer = wide[at] - np.delete(wide, at, axis=0).max(axis=0)
    step, excess = float(case.durations.mean()), float(np.mean(np.maximum(longer, 0.0)))
    alike = chance.neighbours(wide)
    often, steps = float((longer > 0).mean()), int(len(longer) / alike)
    by_chance = chance.apart_by_chance(steps, int(often * steps), 1, len(ranks))
    late = [ranks[at]]
    if excess < LONGER * step or often < PERSISTENT or by_chance >= chance.RARE:
        return []
    table = case.analysis.waterfall
    blocked = (table["exposed_s"] - table["skew_wait_s"]).groupby(table["rank"]).mean()
    if blocked.drop(late[0]).mean() - blocked[late[0]] < excess / 2:
        return []  # communication does not hide it
    if {*late} & {*case.stalled, *case.drifting}:
        return []
    if case.late_by_operations(late) or cpus.explain(case, late, excess / step):
        return []
    cured = _cured(case, late, case.usual, hidden=True)
    if cured.expected.gain < LONGER:
        return []
    return [
        Finding(
            "persistent straggler",
            *_in_phase(
                case,
                late,
                case.usual,
                f"{_capital(case.where(late[0]))} computes longer than the others in "
                f"{100 * often:.0f} % of the steps, by {milliseconds(excess)} on average: "
                f"{100 * excess / step:.0f} % of the time. Communication begins that much later, "
                "and all of it blocks the others at the end of their steps.",
                f"Find out why rank {late[0]} computes longer: its share of the data, its input "
                "pipeline, other processes on its host, its clock speed. Until then give it less "
                "work." + cured.says(),
            ),
            cured.expected.gain,
            {
                "pattern": "always",
                "delay_share": excess / step,
                "rank": float(late[0]),
                "late_ms": 1e3 * excess,
                "steps_last_share": often,
                "hidden_ms": 1e3 * min(excess, cured.expected.gain * step),
                "replay_error": case.replay_error(case.sample),
                **_both(cured),
            },
            cured.expected.between,
        )
    ]


def _straggler(case: Case, row: schema.Straggler) -> Finding:
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
        cured = _cured(case, [rank], case.usual)
        why = cpus.why_late(case, rank)
        sentence = (
            f"{_capital(case.where(rank))} holds the others up in "
            f"{100 * float(row['steps_last_share']):.0f} % of the steps, by "
            f"{milliseconds(pattern.by(delays))} on average: {100 * share:.0f} % of the time"
            f"{why and f', because {why}'}."
        )
        action = (
            f"End the other programs on the CPUs that rank {rank} may use (top shows them), or "
            "give it other CPUs (taskset, numactl)."
            if why
            else f"Find out why rank {rank} computes longer: its share of the data, its input "
            "pipeline, other processes on its host, its clock speed. Until then give it less work."
            + cured.says()
        )
        return Finding(
            "persistent straggler",
            *((sentence, action) if why else _in_phase(case, [rank], case.usual, sentence, action)),
            cured.expected.gain,
            evidence | _both(cured),
            cured.expected.between,
        )
    chosen = (numbers >= first) & (numbers <= final)
    cured = _cured(case, [rank], chosen)
    when = (
        f"steps {first} to {final}, by {late} a step"
        if first < final
        else (f"step {first}, by {late}")
    )
    return Finding(
        "transient straggler",
        *_in_phase(
            case,
            [rank],
            chosen,
            f"{_capital(case.where(rank))} held the others up in {when}, but hardly before and "
            "after.",
            f"Look at what happened on rank {rank}'s host then: another process, a checkpoint, "
            "throttling, a slow shard of the data." + cured.says(),
        ),
        cured.expected.gain,
        evidence | _both(cured),
        cured.expected.between,
    )


def _both(cured: cure.Cure) -> dict[str, float | str]:
    """As evidence: the gain if the work moves to others, and if it vanishes."""
    if cured.moved is None:
        return {}
    return {"gain_if_moved": cured.moved.gain, "gain_if_removed": cured.removed.gain}


def _pauses(case: Case, row: schema.Straggler) -> Finding:
    """A rank that holds the others up repeatedly, but not in most steps."""
    rank, period = int(row["rank"]), int(row["period"])
    paused = case.paused(rank)
    cured = cure.of_ranks(case, [rank], phases.with_update(case, paused, [rank]), moves=False)
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
        *_in_phase(
            case,
            [rank],
            paused,
            f"{_capital(case.where(rank))} holds the others up in {when}, by {milliseconds(late)} "
            f"each time: {100 * share:.0f} % of the time.",
            f"{action} Do it in the background, or on all ranks in the same step.",
        ),
        cured.expected.gain,
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
        cured.expected.between,
    )


def _slow_group(case: Case) -> list[Finding]:
    """See Case.slow_group."""
    slow, analysis = case.slow_group, case.analysis
    if not slow or set(slow) == set(case.drifting):
        return []
    late_share = case.delay_by(slow) / float(case.durations.mean())
    if case.late_by_operations(slow) or cpus.explain(case, slow, late_share):
        return []
    share = case.held_up_by(slow)
    hosts = {analysis.joint.views[r].recording.identity.host for r in slow if case.position(r) >= 0}
    others = {
        view.recording.identity.host
        for rank, view in analysis.joint.views.items()
        if rank not in slow
    }
    on_host = f", all of host {min(hosts)}," if len(hosts) == 1 and not hosts & others else ""
    names = f"{', '.join(map(str, slow[:-1]))} and {slow[-1]}"
    table = analysis.lateness
    late = float(table.loc[table["rank"].isin(slow), "lateness_s"].median())
    delays = pattern.held_up(case, slow)
    cured = _cured(case, slow, case.usual)
    return [
        Finding(
            "persistent straggler",
            *_in_phase(
                case,
                slow,
                case.usual,
                f"Ranks {names}{on_host} hold the others up in {100 * share:.0f} % of the steps, "
                f"by {milliseconds(pattern.by(delays))} on average: "
                f"{100 * pattern.share(case, delays):.0f} % of the time.",
                "Find out what these ranks have in common: their host, their share of the data, "
                "their CPUs. Until then give them less work." + cured.says(),
            ),
            cured.expected.gain,
            {
                "pattern": "always",
                "delay_share": pattern.share(case, delays),
                "ranks": ", ".join(map(str, slow)),
                "late_ms": 1e3 * late,
                "steps_last_share": share,
                "replay_error": case.replay_error(case.sample),
                **_both(cured),
            },
            cured.expected.between,
        )
    ]
