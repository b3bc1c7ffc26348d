"""The entry point: the answers to all questions about one recording."""

from __future__ import annotations

import numpy as np

from hvdtune.timeline.analysis import fusion, phases, quality, skew, stalls
from hvdtune.timeline.analysis.answers import Analysis
from hvdtune.timeline.analysis.waterfall import overlap, waterfall
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.structure import step_starts
from hvdtune.timeline.structure.joint import Joint, join
from hvdtune.timeline.structure.owners import owners
from hvdtune.timeline.structure.steps import find_steps


def analyse(recording: Recording) -> Analysis:
    """All analyses of one recording.

    Work grows linearly with the records; the memory used besides the recording itself is about 40
    bytes for each tensor record of one rank plus 200 for each batch of each rank. Raises
    ValueError if the recording has no rank.
    """
    joint = join(recording)
    origin = first_time(joint)
    steps, starts = step_starts.split(joint, find_steps(joint), origin)
    parts = waterfall(joint, steps)
    falls = parts.frame(steps)
    late = skew.lateness(joint, steps, parts)
    batches = fusion.batches(joint, steps, origin)
    by_epoch = fusion.settings_by_epoch(recording)
    return Analysis(
        recording=recording,
        origin_ns=origin,
        steps=steps.frame(origin),
        waterfall=falls,
        overlap=overlap(parts, steps),
        lateness=late,
        stragglers=skew.stragglers(joint, steps, late),
        batches=batches,
        fusion=fusion.fusion(joint, steps, batches),
        stalls=stalls.stalls(joint, steps, late, origin, starts),
        tuning=quality.tuning(joint, steps, origin),
        settings=by_epoch[max(by_epoch)],
        quality=quality.quality(joint, steps, late),
        joint=joint,
        found_steps=steps,
        phases=phases.phases(joint, steps, falls),
        starts=starts,
        owners=tuple(owners(joint, steps)),
    )


def first_time(joint: Joint) -> int:
    """The time of the earliest record, ns; 0 if there is none."""
    times = []
    for view in joint.views.values():
        for times_of in (view.first_own, view.begin, view.blocked.begin):
            known = times_of[times_of > 0]
            times += [int(known.min())] if len(known) else []
        marks = view.recording.marks
        times += [int(marks["time"].min())] if len(marks) else []
    return int(np.min(times)) if times else 0
