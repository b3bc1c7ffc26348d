"""What to do next: causes of lost time, best first, each with what fixing it is expected to give.

Expected gains come from playing the recorded steps again with one thing changed
(hvdtune/timeline/replay.py); docs/metrics.md says how and what is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdtune.timeline.report_data import Analysis

#: Smaller expected gains are not worth a sentence.
WORTH = 0.02
#: What helps nearly every job comes before what is wrong with this one if it gives so much more.
ADVICE = 2


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    kind: stable word for programs. sentence: what is the case, with rank, host, tensor or setting.
    action: what to change, exactly. gain: expected share of the recorded steps' time saved, 0..1.
    evidence: the numbers behind it; names end in their unit.
    """

    kind: str
    sentence: str
    action: str
    gain: float
    evidence: dict[str, float | str] = field(default_factory=dict)


def findings(analysis: Analysis) -> list[Finding]:
    """All findings, the greatest expected gain first. Never empty: "nothing to gain" is one.

    Advice that would help nearly every job (fewer copies, fewer bytes) stands behind what is wrong
    with this one, unless it gives ADVICE times as much; its gain is what it gives beyond the best
    of the others. Gains do not add up: what one change saves, another may no longer find. GPUs that
    are not well come beside all this: broken memory first, lowered clocks last.
    """
    from hvdtune.timeline import causes_ranks, gpu_health

    endless = causes_ranks.endless_stalls(analysis)  # come first: the job ended there
    recording = analysis.recording
    return [
        *gpu_health.errors(recording),
        *endless,
        *_of_steps(analysis, ended=bool(endless)),
        *gpu_health.warnings(recording),
    ]


def _of_steps(analysis: Analysis, *, ended: bool) -> list[Finding]:
    """Where the steps spend their time; never empty unless a stall has `ended` the job."""
    from hvdtune.timeline import causes, causes_ranks

    if not len(analysis.found_steps):
        return [causes.no_steps(analysis)]
    case = causes_ranks.Case.of(analysis)
    found = [
        *causes_ranks.stalls(case),
        *causes_ranks.stragglers(case),
        *causes_ranks.taking_turns(case),
        *causes.cpus_taken(case),
        *causes.broadcasts(case),
        *causes.settings(case),
        *causes.huge_tensor(case),
        *causes.no_overlap(case),
        *causes.automatic_names(case),
    ]
    cures = _worth(found)
    advice = _worth([*causes.copies(case), *causes.communication(case)])
    most = max((one.gain for one in cures), default=0.0)
    first = [one for one in advice if one.gain >= ADVICE * most]
    told = [*first, *cures, *(one for one in advice if one not in first)]
    return told or ([] if ended else [causes.nothing(case)])


def _worth(found: list[Finding]) -> list[Finding]:
    """Those that are worth a sentence, the greatest gain first."""
    return sorted((one for one in found if one.gain >= WORTH), key=lambda one: -one.gain)
