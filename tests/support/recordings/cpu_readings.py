"""Puts what a rank's threads and CPUs did into recordings of jobs that never ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record.host_counters import ALLOWED, COUNTERS, PROGRAM, listed
from hvdtune.timeline.record.layout import (
    COUNTER,
    CPUS_FOR_BATCHES,
    CPUS_IN_USE,
    CPUS_WAITED_FOR,
    Mark,
    RankRecording,
    Recording,
)
from support.recordings.synthetic_capture import Job, recording

#: CPUs that a batch keeps busy on a rank.
BATCHES = 0.2


def add(one: RankRecording, times: np.ndarray, readings: dict[str, np.ndarray | float]) -> None:
    """Counters that are read together."""
    parts = [one.streams["counters"]]
    for name, values in readings.items():
        if name not in one.texts:
            one.texts.append(name)
        rows = np.zeros(len(times), COUNTER)
        rows["time"], rows["value"] = times, values
        rows["counter"] = one.texts.index(name)
        parts.append(rows)
    rows = np.concatenate(parts)
    one.streams["counters"] = rows[np.argsort(rows["time"], kind="stable")]


def crowded(
    job: Job,
    *,
    cpus: int,
    work: float,
    kept: Sequence[float],
    others: float = 0.0,
    allowed: Sequence[set[int]] = (),
    program: tuple[str, int] | None = None,
    **means: float,
) -> Recording:
    """The job, whose ranks each have a CPU for `work` seconds of a step while they compute, and
    wait for one for `kept` seconds. Other programs use so many of the CPUs. `means`: what else is
    read, by key of COUNTERS."""
    whole = recording(replace(job, cpus=cpus))
    table = analyse(whole).waterfall.set_index(["rank", "step"])
    sets = list(allowed) or [set(range(cpus))] * job.ranks
    for rank, one in whole.ranks.items():
        own = table.loc[rank]
        marks = one.marks[one.marks["kind"] == int(Mark.STEP)]
        times = marks["time"][np.isin(marks["value"], own.index)]
        batches = BATCHES * own["communication_s"]
        used = work + batches
        add(
            one,
            times,
            {
                CPUS_IN_USE: (used / own["step_s"]).to_numpy(),
                CPUS_FOR_BATCHES: (batches / own["step_s"]).to_numpy(),
                CPUS_WAITED_FOR: (kept[rank] / own["step_s"]).to_numpy(),
            },
        )
        run = float(used.sum() / own["step_s"].sum())
        sharing = sum(len(sets[rank] & mask) / len(mask) for mask in sets)
        read = {
            "run": run,
            "main": run,
            "wait": kept[rank] / float(own["step_s"].mean()),
            "computing": 1.0,
            "set": 1.0,
            "busy": min(run * sharing + others, len(sets[rank])),
            "online": float(cpus),
            "stolen": 0.0,
            "throttled": 0.0,
            **means,
        }
        values: dict[str, np.ndarray | float] = {COUNTERS[k]: v for k, v in read.items()}
        values[ALLOWED.format(list=listed(sets[rank]))] = float(len(sets[rank]))
        if program and rank == 0:
            values[PROGRAM.format(name=program[0], pid=program[1])] = others
        begin, end = int(times[0]), int(times[-1])
        add(one, np.linspace(begin, end - 1000, 6).astype(np.int64), values)
    return whole
