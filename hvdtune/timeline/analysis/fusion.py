"""How tensors were fused, and why batches were closed. Definitions: docs/metrics.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline.analysis.answers import Fusion
from hvdtune.timeline.record.layout import DTYPES, REASONS, Mark, Recording
from hvdtune.timeline.structure.joint import Joint, kind_name
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
CYCLE = "HOROVOD_CYCLE_TIME"
#: The engine's names of the settings that change while it runs → their variables.
_VARIABLES = {
    "fusion_threshold": THRESHOLD,
    "cycle_time_ms": CYCLE,
    "chunk_size": "HVDTUNE_CHUNK_SIZE",
    "one_shot_limit": "HVDTUNE_ONE_SHOT_LIMIT",
    "nccl_bypass_limit": "HVDTUNE_NCCL_BYPASS_LIMIT",
    "hierarchical_allreduce": "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "hierarchical_allgather": "HOROVOD_HIERARCHICAL_ALLGATHER",
    "num_nccl_streams": "HOROVOD_NUM_NCCL_STREAMS",
}


def settings_by_epoch(recording: Recording) -> dict[int, dict[str, Any]]:
    """Epoch → settings in force. Settings that an epoch does not mention are those of the one
    before.

    Read from rank 0's identity and its SETTINGS marks, or the lowest recorded rank's if 0 is
    missing.
    """
    one = recording.ranks[min(recording.ranks)]
    current = dict(one.identity.settings)
    result = {0: dict(current)}
    for mark in one.marks[one.marks["kind"] == int(Mark.SETTINGS)]:
        text = one.texts[mark["text"]] if mark["text"] < len(one.texts) else ""
        try:
            changed = json.loads(text)
        except ValueError:
            continue
        if isinstance(changed, dict):
            current |= {
                _VARIABLES.get(str(name), str(name)): value for name, value in changed.items()
            }
            result[int(mark["value"])] = dict(current)
    return result


def number(settings: dict[str, Any], name: str) -> float:
    """A setting as a number; NaN if it is missing or not a number."""
    try:
        return float(settings[name])
    except (KeyError, TypeError, ValueError):
        return float("nan")


def thresholds(joint: Joint) -> np.ndarray:
    """Fusion threshold in force for each batch, bytes, float64; NaN if not recorded."""
    by_epoch = settings_by_epoch(joint.recording)
    known = np.array(sorted(by_epoch), np.int64)
    values = np.array([number(by_epoch[int(epoch)], THRESHOLD) for epoch in known])
    at = np.searchsorted(known, joint.epoch, side="right") - 1
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def batches(joint: Joint, steps: Steps, origin: int) -> pd.DataFrame:
    """One row per batch, in the order of the schedule.

    | column | formula |
    |---|---|
    | step | the step it belongs to; -1 outside of whole steps |
    | op, dtype, process_set, tensors, bytes | as recorded |
    | ranks | number of participating ranks; 0 if unknown |
    | fill | bytes / fusion threshold in force; NaN if that is 0 or unknown |
    | reason | why it was closed: full, cycle, blocked, step done, end |
    | begin_s, end_s | min over ranks of x_r, max of e_r |
    | delay_s | c − f: from its first ready tensor until it was closed; NaN without rank 0 |
    | negotiation_s | c − L: from the last submission until it was closed; NaN without rank 0 |
    | skew_s | L − F: from the first rank to the last |
    | run_s | the shortest over the ranks, of e − x |
    """
    import pandas as pd

    threshold = thresholds(joint)
    scheduled = np.where(joint.scheduled > 0, joint.scheduled, np.nan)
    step = np.full(len(joint), -1, np.int64)
    inside = steps.batch_step >= 0
    step[inside] = steps.number[steps.batch_step[inside]]
    with np.errstate(divide="ignore", invalid="ignore"):
        fill = np.where(threshold > 0, joint.bytes / threshold, np.nan)
    return pd.DataFrame(
        {
            "serial": joint.serial,
            "step": step,
            "op": pd.Categorical([kind_name(kind) for kind in joint.kind]),
            "dtype": pd.Categorical.from_codes(
                np.minimum(joint.dtype, len(DTYPES)), [*DTYPES, "unknown"]
            ),
            "process_set": joint.process_set,
            "ranks": joint.members(),
            "tensors": joint.tensors,
            "bytes": joint.bytes,
            "fill": fill,
            "reason": pd.Categorical.from_codes(
                np.minimum(joint.reason, len(REASONS)), [*REASONS, "unknown"]
            ),
            "begin_s": (joint.over_ranks("begin", largest=False) - origin) / 1e9,
            "end_s": (joint.over_ranks("end") - origin) / 1e9,
            "delay_s": _difference(scheduled, joint.first_ready),
            "negotiation_s": np.maximum(0, _difference(scheduled, joint.last)),
            "skew_s": np.where(joint.last_rank >= 0, joint.last - joint.first, np.nan) / 1e9,
            "run_s": joint.pure() / 1e9,
        }
    )


def _difference(later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
    return (later - np.where(earlier > 0, earlier, np.nan)) / 1e9


def fusion(joint: Joint, steps: Steps, frame: pd.DataFrame) -> Fusion:
    """How full batches are, over the allreduces of whole steps (all batches if there are none).

    tail_s: median over steps of (end of the step's last batch − the step's last submission): time
    that no overlap can hide. `frame` is from batches().
    """
    chosen = frame[(frame["op"] == "allreduce") & (frame["step"] >= 0)]
    chosen = chosen if len(chosen) else frame
    last = settings_by_epoch(joint.recording)
    settings = last[max(last)]
    reasons = chosen["reason"].value_counts()
    nan = float("nan")
    return Fusion(
        batches_per_step=len(chosen) / len(steps) if len(steps) else nan,
        tensors_per_batch=float(chosen["tensors"].median()) if len(chosen) else nan,
        bytes_per_batch=float(chosen["bytes"].median()) if len(chosen) else nan,
        fill=float(chosen["fill"].median()) if len(chosen) else nan,
        threshold_bytes=number(settings, THRESHOLD),
        cycle_time_s=number(settings, CYCLE) / 1e3,
        tail_s=_tail(joint, steps),
        reasons={str(reason): int(count) for reason, count in reasons.items() if count},
    )


def _tail(joint: Joint, steps: Steps) -> float:
    inside = np.flatnonzero((steps.batch_step >= 0) & (joint.last > 0))
    if not len(inside):
        return float("nan")
    step = steps.batch_step[inside]
    order = np.argsort(step, kind="stable")
    edges = np.concatenate([[0], np.flatnonzero(np.diff(step[order])) + 1])
    ends = np.maximum.reduceat(joint.over_ranks("end")[inside][order], edges)
    submissions = np.maximum.reduceat(joint.last[inside][order], edges)
    return float(np.median(ends - submissions) / 1e9)
