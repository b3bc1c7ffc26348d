"""Ranks that wait for each other, each time for a different one."""

from __future__ import annotations

import numpy as np

from hvdtune.timeline.evidence import pattern
from hvdtune.timeline.evidence.case import Case, milliseconds
from hvdtune.timeline.evidence.expected import one_of, saved
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.replay import changes

#: Waiting for late ranks without one culprit is reported from this share of the step on.
TURNS = 0.05


def taking_turns(case: Case) -> list[Finding]:
    """Ranks wait for each other, each time for a different one."""
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
    even, steady = saved(case, changes.evenly()), saved(case, changes.steadily())
    meanings = [even, *([steady] if steady.gain > even.gain else [])]
    if changes.in_two_modes(one for stretch in case.sample.stretches for one in stretch):
        meanings.append(saved(case, changes.as_the_quickest()))
    gains = [one.gain for one in meanings]
    expected = one_of((min(gains) + max(gains)) / 2, meanings)
    return [
        Finding(
            "ranks take turns",
            _turns_sentence(case, order, delays, share, spread),
            "Give all ranks the same amount of work in every step (equal batch and sequence "
            "lengths), and leave each a spare CPU: fewer ranks × threads than CPUs.",
            expected.gain,
            {
                "pattern": "alternating" if order else "random",
                "delay_share": pattern.share(case, delays),
                "spread_ms": 1e3 * spread,
                "skew_share": share,
                "gain_if_even": even.gain,
                "gain_if_removed": max(gains),
                "replay_error": case.replay_error(case.sample),
            },
            expected.between,
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
            f"{', '.join(map(str, order[1:]))}, and again. The others wait for the late rank for "
            f"{100 * share:.0f} % of the step."
        )
    often = float((delays > 0).sum() / case.usual.sum())
    worst = case.analysis.stragglers.head(3)
    who = ", ".join(
        f"rank {int(rank)} in {100 * held:.0f} %"
        for rank, held in zip(worst["rank"], worst["steps_last_share"], strict=True)
    )
    return (
        f"Ranks wait {100 * share:.0f} % of the step for a late one, and take turns in being late "
        f"({who} of the steps): what they compute in a step differs by {milliseconds(spread)} "
        f"(standard deviation), and the last one holds {100 * often:.0f} "
        f"% of the steps up, by {late} on average."
    )
