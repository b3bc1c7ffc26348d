"""The tuner's course, and how far the numbers can be trusted. See docs/metrics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.analysis.answers import Quality
from hvdtune.timeline.record.layout import Mark, RankRecording
from hvdtune.timeline.structure.joint import Joint
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

#: The cost of a record to a rank, seconds of CPU: reading the clock, taking and writing it.
#: RECORD_COST is for streams that are not listed.
RECORD_COSTS = {"tensors": 15e-9, "batches": 500e-9}
RECORD_COST = 100e-9
#: … of a mark of a phase, including the detection of its beginning or end …
PHASE_COST = 3e-6
#: … and of a wait if ranks share CPUs, with the query of how long it waited for one.
CROWDED_WAIT_COST = 2e-6


def _text(one: RankRecording, number: int) -> str:
    return one.texts[number] if number < len(one.texts) else ""


def tuning(joint: Joint, steps: Steps, origin: int) -> pd.DataFrame:
    """The autotuner's course: rank 0's AUTOTUNE and SETTINGS marks in order.

    time_s; step (number of the step it falls in, -1 outside); kind "autotune" or "settings"; epoch
    (of SETTINGS; else -1); text.
    """
    import pandas as pd

    rank = min(joint.views)
    one = joint.views[rank].recording
    wanted = {int(Mark.AUTOTUNE): "autotune", int(Mark.SETTINGS): "settings"}
    marks = one.marks[np.isin(one.marks["kind"], list(wanted))]
    step = np.full(len(marks), -1, np.int64)
    if len(steps):
        at = np.searchsorted(steps.end[rank], marks["time"], side="left")
        inside = at < len(steps)
        near = np.minimum(at, len(steps) - 1)
        inside &= steps.begin[rank][near] <= marks["time"]
        step[inside] = steps.number[near[inside]]
    return pd.DataFrame(
        {
            "time_s": (marks["time"].astype(np.int64) - origin) / 1e9,
            "step": step,
            "kind": [wanted[int(kind)] for kind in marks["kind"]],
            "epoch": np.where(marks["kind"] == int(Mark.SETTINGS), marks["value"], -1),
            "text": [_text(one, int(text)) for text in marks["text"]],
        }
    )


def quality(joint: Joint, steps: Steps, late: pd.DataFrame) -> Quality:
    """Lost records, missing ranks, the clocks' accuracy, the possible cost of recording."""
    recording = joint.recording
    dropped: dict[str, int] = {}
    records, shares = 0, [0.0]
    for one in recording.ranks.values():
        for stream, count in one.dropped.items():
            if count:
                dropped[stream] = dropped.get(stream, 0) + int(count)
        records += sum(len(table) for table in one.streams.values())
        costs = RECORD_COSTS
        if 0 < one.identity.cpus < one.identity.local_size:
            costs = costs | {"waits": CROWDED_WAIT_COST}
        cost = sum(
            len(table) * costs.get(stream, RECORD_COST) for stream, table in one.streams.items()
        )
        cost += PHASE_COST * int((one.marks["kind"] == int(Mark.PHASE)).sum())
        ends, begins = one.batches["end"], one.batches["begin"]
        if len(ends):
            shares.append(cost / max(int(ends.max() - begins.min()) / 1e9, 1e-9))
    bound = recording.clock_bound_ns / 1e9
    typical = late.loc[late["lateness_s"] > 0, "lateness_s"].median() if len(late) else np.nan
    return Quality(
        ranks_recorded=len(recording.ranks),
        ranks_missing=tuple(r for r in range(recording.size) if r not in recording.ranks),
        incomplete_ranks=tuple(
            r for r, one in sorted(recording.ranks.items()) if not (one.complete or one.cut_off)
        ),
        cut_off={str(r): one.cut_off for r, one in sorted(recording.ranks.items()) if one.cut_off},
        dropped=dropped,
        clock_bound_s=bound,
        skew_below_clock_bound=bool(typical < bound),
        steps_from=steps.found_from,
        steps_ignored=steps.ignored,
        records=records,
        recording_overhead_share=float(max(shares)),
        problems=tuple(recording.problems),
    )
