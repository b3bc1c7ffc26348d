"""Causes of lost time that lie in operations which are no allreduces of gradients."""

from __future__ import annotations

import numpy as np

from hvdtune.timeline import whatif, words
from hvdtune.timeline.advice.case import Case
from hvdtune.timeline.advice.finding import Finding

#: What comes in this share of the steps comes in every step.
MOSTLY = 0.8


def broadcasts(case: Case) -> list[Finding]:
    """Broadcasts in most steps: what one rank has to tell seldom changes from step to step."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    names = case.analysis.joint.reference.recording.names
    sent = {at for at, name in enumerate(names) if name.name.startswith("broadcast.")}
    count = {at: sum(bool((one.name == at).any()) for one in plays) for at in sent}
    steady = [at for at in sorted(sent) if plays and count[at] >= MOSTLY * len(plays)]
    if not steady:
        return []
    step = plays[len(plays) // 2]
    size = float(step.bytes[np.isin(step.name, steady)].sum())
    largest = names[max(steady, key=lambda at: names[at].bytes)].name
    text = largest.removeprefix("broadcast.").removesuffix(".t")
    others = f" and {len(steady) - 1} more" if len(steady) > 1 else ""
    return [
        Finding(
            "broadcast in every step",
            f"The program broadcasts {text}{others} in every step, {words.size(size)}, and waits "
            "for it.",
            "Broadcast it once before the loop, or only when it has changed; let each rank make or "
            "read it by itself if it can.",
            case.gain(whatif.left_out(steady)),
            {
                "tensor": text,
                "bytes": size,
                "broadcasts_per_step": float(len(steady)),
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]
