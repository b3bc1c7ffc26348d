"""Causes of lost time that show over the run: steps that become longer, and occasional work on all
ranks. Each function is one question; definitions: docs/metrics.md, "Courses"."""

from __future__ import annotations

import numpy as np

from hvdtune.timeline.analysis import chance
from hvdtune.timeline.analysis.trend import Change, course
from hvdtune.timeline.evidence.case import OUTLIER, TAIL, Case, milliseconds
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.words import ordinal
from hvdtune.timeline.words import ranks as named

#: Something explains longer steps if it grew by this share of their growth.
RESPONSIBLE = 0.5
#: A step counts as longer if it is by this many spreads (median absolute deviations) …
SPREADS = 8
#: … and by this share of the median step: for regular steps, and for those at random.
REGULAR, RANDOM = 0.15, 0.5
#: At random: the excess must be this many times that of the longest other step; a long tail has no
#: such gap.
GAP = 2
#: At most this share of the steps can be unusual.
MOST = 0.26


def drifts(case: Case) -> list[Finding]:
    """Steps become longer: little by little, from a step on, or for a while."""
    found = case.change
    if found is None or (found.course.kind != "drift" and _tuned(case)):
        return []
    level, durations = found.course.level, case.durations
    before = float(level[0])
    gain = float((level - before).sum() / durations.sum())
    numbers = case.analysis.found_steps.number
    first, final = found.course.first, found.course.final
    evidence: dict[str, float | str] = {
        "pattern": {"drift": "drift", "shift": "interval", "interval": "interval"}[
            found.course.kind
        ],
        "delay_share": gain,
        "before_ms": 1e3 * before,
        "after_ms": 1e3 * (before + found.course.growth),
        "part": "compute" if found.ranks else "communication",
        "from_step": float(numbers[first]),
        "to_step": float(numbers[final]),
    }
    if found.ranks and not found.everywhere:
        evidence |= {"ranks": ", ".join(map(str, found.ranks))}
        if len(found.ranks) == 1:
            evidence |= {"rank": float(found.ranks[0])}
    if found.course.kind == "drift":
        evidence |= {"growth_ms_per_step": 1e3 * found.course.growth / len(level)}
        return [Finding("drift", _drift_sentence(case, found), _action(found), gain, evidence)]
    whole = final == len(level) - 1
    what = (
        f"all ranks compute {milliseconds(float(np.median(list(found.each.values()))))} longer"
        if found.ranks
        else "operations take longer, but computing does not"
    )
    if whole:
        when = f"Since step {numbers[first]} steps take"
    else:
        when = f"In steps {numbers[first]} to {numbers[final]} a step takes"
    sentence = (
        f"{when} {milliseconds(before + found.course.growth)} instead of {milliseconds(before)}: "
        f"{what}. That is {100 * gain:.0f} % of the time."
    )
    kind = "slower since a step" if whole else "slower for a while"
    return [Finding(kind, sentence, _action(found), gain, evidence)]


def _tuned(case: Case) -> bool:
    """Whether settings changed during the run: that may have changed the steps."""
    tuning = case.analysis.tuning
    return len(tuning) > 0 and tuning["epoch"].nunique() > 1


def _drift_sentence(case: Case, found: Change) -> str:
    level = found.course.level
    steps = f"steps take {milliseconds(float(level[0]))} at the beginning and "
    steps += f"{milliseconds(float(level[-1]))} at the end"
    if not found.ranks:
        return (
            f"Communication takes longer and longer: {steps}, {_rate(found.course.growth, level)} "
            "more with each; computing does not."
        )
    if found.everywhere:
        grown = float(np.median(list(found.each.values())))
        return (
            f"All ranks compute longer and longer, {_rate(grown, level)} more with each step: "
            f"{steps}."
        )
    if len(found.ranks) == 1:
        rank = found.ranks[0]
        own = course(case.computing[rank]).level
        where = case.where(rank)
        return (
            f"{where[:1].upper()}{where[1:]} computes longer and longer, "
            f"{_rate(float(own[-1] - own[0]), own)} more with each step: "
            f"{milliseconds(float(own[0]))} at the beginning, {milliseconds(float(own[-1]))} at "
            f"the end. The others wait for it, and {steps}."
        )
    grown = float(np.median([found.each[rank] for rank in found.ranks]))
    return (
        f"{named(found.ranks).capitalize()} compute longer and longer, {_rate(grown, level)} more "
        f"with each step: {steps}."
    )


def _rate(grown: float, level: np.ndarray) -> str:
    return milliseconds(grown / max(len(level) - 1, 1))


def _action(found: Change) -> str:
    drift = found.course.kind == "drift"
    if not found.ranks:
        return (
            "Look for other users of the network or the memory, and for more or larger tensors "
            f"that are reduced {'with every step' if drift else 'then'}."
        )
    who = "" if found.everywhere else f" on {named(found.ranks)}"
    if drift:
        return (
            f"Look for what grows{who} with every step: a list of losses that are still tensors "
            "(append loss.item(), not loss), a graph kept alive, a cache, a log that is read or "
            "rewritten; or longer inputs, or a CPU or GPU that becomes hot."
        )
    return (
        "Look at what changed then: another program on the hosts, a lower clock (heat, power), "
        "longer inputs, another phase of the training, memory that is swapped."
    )


def work_now_and_then(case: Case) -> list[Finding]:
    """Periodically or at random, a step takes much longer on all ranks."""
    paused, extra = _longer_steps(case)
    if paused.sum() < 3:
        return []
    numbers = case.analysis.found_steps.number
    period = chance.period(numbers[paused])
    typical = float(np.median(case.durations))
    if not period:
        apart = float(extra[paused].min()) >= GAP * max(float(extra[~paused].max(initial=0)), 0.0)
        if not apart or float(np.median(extra[paused])) < RANDOM * typical:
            return []
    gain = float(extra[paused].sum() / case.durations.sum())
    size = float(np.median(extra[paused]))
    if period:
        sentence = (
            f"Every {ordinal(period)} step takes {milliseconds(size)} longer on all ranks: "
            f"{100 * gain:.0f} % of the time."
        )
        action = f"Look at what all ranks do every {period} steps"
    else:
        sentence = (
            f"{paused.sum()} of {len(paused)} steps take {milliseconds(size)} longer on all ranks, "
            f"at random: {100 * gain:.0f} % of the time."
        )
        action = "Look at what all ranks do now and then"
    action += (
        ": a checkpoint, an evaluation, a log, garbage collection, the next file of the data. Do "
        "it less often, faster, or in the background."
    )
    evidence: dict[str, float | str] = {
        "pattern": "periodic" if period else "random",
        "delay_share": gain,
        "steps": float(paused.sum()),
        "period_steps": float(period),
        "longer_ms": 1e3 * size,
    }
    kind = "periodic work" if period else "pauses of all ranks"
    return [Finding(kind, sentence, action, gain, evidence)]


def pauses_in_turn(case: Case) -> list[Finding]:
    """Now and then a rank stops while the others wait, each time a different one."""
    table, numbers = case.analysis.lateness, case.analysis.found_steps.number
    told = np.zeros(len(numbers), bool)
    for row in case.rows("transient"):
        told |= (numbers >= row["from_step"]) & (numbers <= row["to_step"])
    for row in case.rows("recurring"):
        told |= case.paused(int(row["rank"]))
    stalls = case.analysis.stalls
    told |= np.isin(numbers, stalls.loc[stalls["rank"].isin(case.stalled), "step"])
    wide = table.pivot(index="rank", columns="step", values="delay_s")
    delays = wide.to_numpy().max(axis=0)
    paused = ~told & (case.durations > OUTLIER * np.median(case.durations))
    paused &= delays >= RESPONSIBLE * case.durations
    ranks = [int(rank) for rank in wide.index[wide.to_numpy().argmax(axis=0)[paused]]]
    gain = float(delays[paused].sum() / case.durations.sum())
    if paused.sum() < TAIL or len(set(ranks)) < 2:
        return []
    often = max(set(ranks), key=ranks.count)
    size = milliseconds(float(np.median(delays[paused])))
    return [
        Finding(
            "ranks pause in turn",
            f"In {paused.sum()} of {len(paused)} steps a rank stops for {size} (median) while the "
            f"others wait: {100 * gain:.0f} % of the time. No rank in particular does so (rank "
            f"{often} most often, {ranks.count(often)} times), and the pauses are at random.",
            "Look at what ranks do only now and then, each on its own: a slow input, garbage "
            "collection, a log, another program on their CPUs. Do it in the background, or on all "
            "ranks in the same step.",
            gain,
            {
                "pattern": "random",
                "delay_share": gain,
                "steps": float(paused.sum()),
                "late_ms": 1e3 * float(np.median(delays[paused])),
            },
        )
    ]


def _longer_steps(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """[S] bool: the steps in which all ranks compute longer; [S] s: how much longer than usual the
    steps are, without waiting for a late rank."""
    computing = np.array(list(case.computing.values()))
    table = case.analysis.lateness
    delays = table.pivot(index="rank", columns="step", values="delay_s").to_numpy().max(axis=0)
    level = course(case.durations).level
    extra = case.durations - level - np.maximum(delays - np.median(delays), 0.0)
    common = (computing - np.median(computing, axis=1)[:, None]).min(axis=0)
    spread = float(np.median(np.abs(extra - np.median(extra))))
    least = max(SPREADS * spread, REGULAR * float(np.median(case.durations)))
    paused = (extra >= least) & (common >= RESPONSIBLE * extra)
    if paused.mean() > MOST:
        paused[:] = False
    return paused, extra
