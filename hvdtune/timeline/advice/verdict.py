"""What to do next: causes of lost time, the largest expected gain first.

Expected gains are computed by replaying the recorded steps with one thing changed
(hvdtune/timeline/replay/play.py); docs/metrics.md describes how and what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdtune.timeline.advice import (
    accounting,
    cpus,
    gpus,
    operations,
    order,
    overlap,
    phases,
    ranks,
    traffic,
    trend,
    turns,
    unseen_waits,
)
from hvdtune.timeline.advice.overlap import what_was_done
from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import SURELY, WORTH, Finding

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.answers import Analysis

#: Advice for nearly every job is placed before a fault of this one if it gains this many times as
#: much.
ADVICE = 2
#: The questions about what may be wrong with a job, in the order in which they are asked.
QUESTIONS: tuple[Callable[[Case], list[Finding]], ...] = (
    ranks.stalls,
    ranks.stragglers,
    turns.taking_turns,
    trend.drifts,
    trend.work_now_and_then,
    trend.pauses_in_turn,
    *cpus.QUESTIONS,
    phases.slow_input,
    phases.slow_update,
    phases.beside_training,
    operations.owned,
    order.orders_differ,
    traffic.settings,
    traffic.huge_tensor,
    overlap.one_by_one,
    overlap.no_overlap,
    traffic.automatic_names,
)
#: The questions about what helps nearly every job, asked last.
LAST_QUESTIONS = (traffic.copies, traffic.communication)
#: Below this share of blocked time, communication counts as hidden.
HIDDEN = 0.1
#: What to do if nothing stands out, by the largest part of the step.
LARGEST = {
    accounting.COMPUTING: "Make the computing faster first.",
    accounting.COMMUNICATION: "Send fewer bytes, or less often.",
    accounting.NO_CAUSE: "See which ranks are late and when, and compare with a run on a machine "
    "that runs nothing else: hvdtune diff.",
}


def findings(analysis: Analysis) -> list[Finding]:
    """All findings, the largest expected gain first. Never empty: "nothing to gain" is one.

    Advice that would help nearly every job (fewer copies, fewer bytes) is placed after what is
    wrong with this one, unless it gains ADVICE times as much; its gain is what it saves beyond the
    best of the others. Gains do not add up: two changes may save the same time. Findings about GPUs
    are added: broken memory first, lowered clocks last. If the recording does not show when the
    program waits, no gain is known (unseen_waits.py).
    """
    endless = ranks.endless_stalls(analysis)  # these are first: the job ended there
    recording = analysis.recording
    return [
        *gpus.errors(recording),
        *endless,
        *_of_steps(analysis, ended=bool(endless)),
        *gpus.warnings(recording),
    ]


def _of_steps(analysis: Analysis, *, ended: bool) -> list[Finding]:
    """The findings about steps; never empty unless a stall has `ended` the job."""
    if not len(analysis.found_steps):
        return [no_steps(analysis)]
    case = Case.of(analysis)
    if not analysis.overlap.shows_waits:  # then there is nothing to replay
        return unseen_waits.findings(case)
    cures = _worth([one for question in QUESTIONS for one in question(case)])
    advice = _worth([one for question in LAST_QUESTIONS for one in question(case)], surely=WORTH)
    most = max((one.gain for one in cures), default=0.0)
    first = [one for one in advice if one.gain >= ADVICE * most]
    told = [*first, *cures, *(one for one in advice if one not in first)]
    return told or ([] if ended else [nothing(case)])


def _worth(found: list[Finding], surely: float = SURELY) -> list[Finding]:
    """The findings that are worth it and save more than `surely`, the largest gain first."""
    told = (one for one in found if one.is_worth_it(surely))
    return sorted(told, key=lambda one: -one.gain)


def no_steps(analysis: Analysis) -> Finding:
    """The finding if nothing can be said about steps."""
    batches = len(analysis.batches)
    return Finding(
        "no steps",
        f"The recording has {batches} operations but no two whole steps of training, so it does "
        "not show where steps spend their time.",
        "Record longer, at least several steps on every rank; give tensors the same names in every "
        "step.",
        0.0,
        {"batches": float(batches)},
    )


def nothing(case: Case) -> Finding:
    """The finding if the recording shows nothing that would make the steps shorter."""
    overlap = case.analysis.overlap
    free = 1 - overlap.ideal_free_communication_s / overlap.step_s
    found = accounting.shares(case.analysis, [])
    evidence: dict[str, float | str] = {
        "compute_share": 1 - overlap.exposed_share,
        "free_communication_gain": max(0.0, free),
        "replay_error": case.replay_error(case.sample),
    }
    if overlap.exposed_share >= HIDDEN:
        part = accounting.largest(found)
        return Finding(
            "nothing stands out",
            f"Nothing stands out: no change that was tried saves {100 * WORTH:.0f} % of the step. "
            f"The largest part of it is {part.title}, {100 * part.seconds / overlap.step_s:.0f} %.",
            LARGEST[part.kind],
            0.0,
            evidence,
        )
    return Finding(
        "compute bound",
        f"Nothing to gain: the framework computes {100 * (1 - overlap.exposed_share):.1f} % of the "
        f"step, and communication that cost nothing would save {100 * max(0.0, free):.1f} %. "
        f"{what_was_done(case)}".rstrip(),
        "Make the computing faster: the job hardly waits for communication.",
        0.0,
        evidence,
    )
