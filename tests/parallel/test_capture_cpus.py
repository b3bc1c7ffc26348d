"""What every rank records of CPUs at the end of its steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rank_programs import capture
from support.jobs.ranks import run_ranks
from support.recordings.captures import RankCapture, read_capture

from hvdtune.timeline.record.layout import CPUS_IN_USE, CPUS_WAITED_FOR, Mark


def readings(rank: RankCapture, counter: str) -> np.ndarray:
    [name] = [text for text, words in rank.texts.items() if words == counter]
    own = rank.streams["counters"]
    return own[own["counter"] == name]


def test_every_step_tells_how_many_cpus_the_rank_used(tmp_path: Path) -> None:
    path, steps = tmp_path / "t.json", 6
    run_ranks(2, capture.busy_or_asleep, steps, 0.05, env={"HOROVOD_TIMELINE": str(path)})
    used = {}
    for number, rank in read_capture(path).items():
        own = readings(rank, CPUS_IN_USE)
        # The first step has no beginning.
        assert own["time"].tolist() == rank.marks(Mark.STEP)["time"][1:].tolist()
        used[number] = float(own["value"].mean())
    assert used[0] > 2 * used[1], "rank 0 computes, rank 1 sleeps"
    assert used[0] < 4


def test_ranks_that_take_turns_in_a_batch_do_not_wait_to_compute(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    result = run_ranks(3, capture.on_one_cpu, 12, env={"HOROVOD_TIMELINE": str(path)})
    for number, rank in read_capture(path).items():
        waited, blocked = result.values[number]
        if not waited:
            pytest.skip("the kernel does not count how long threads wait for CPUs")
        own = readings(rank, CPUS_WAITED_FOR)
        ends = rank.marks(Mark.STEP)["time"]
        since = np.concatenate([ends[:1], own["time"][:-1]])
        recorded = float((own["value"] * (own["time"] - since)).sum())
        # Nearly all of `blocked` is left out, whatever the thread waited for besides.
        assert 0 <= recorded <= waited - blocked / 2
        assert blocked > waited / 10
