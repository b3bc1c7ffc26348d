"""A real job whose operations have different owners: what the analysis makes of its recording."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rank_programs import owned, pairs
from support.jobs.ranks import run_ranks
from support.recordings.captures import read_capture
from support.tiers import long_too

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record.layout import Mark
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.report.document import numbers_of
from hvdtune.timeline.report.sentences import lateness

STEPS = 12


@pytest.mark.parametrize("groups", [None, pytest.param(2, marks=pytest.mark.long)])
def test_operations_of_a_job_have_their_owners(tmp_path: Path, groups: int | None) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, owned.train, STEPS, groups, env={"HOROVOD_TIMELINE": str(path)})
    found = {(one.call, one.name): one for one in analyse(read_recording(path)).owners}
    reduced = found["allreduce", "gradients"]
    assert (reduced.count, reduced.bytes) == (4, 4 * (64 * 64 + 64 + 64 + 1))
    loss = found["allreduce", "loss"]
    assert (loss.count, loss.phase) == (1, "before the gradients")
    assert found["allreduce", "metric.#"].count == 5
    assert found["allgather", "seen"].bytes == 12
    unnamed = found["allreduce", ""]
    assert (unnamed.count, unnamed.bytes) == (20, 20 * 28)
    assert re.fullmatch(r"owned\.py:\d+ in train", unnamed.site)
    # What comes behind the last step is in no whole step, nor is what comes before the first.
    state = found["broadcast_object", "state"]
    assert (state.count, state.steps, state.alone) == (2, 1, True)
    for rank in read_capture(path).values():
        [told] = rank.texts_of(Mark.PROGRAM)
        assert json.loads(told)["optimizer"] == "DistributedOptimizer"
        assert json.loads(told)["groups"] == (groups is not None)
        assert json.loads(told)["update"] == "SGD"
        assert "pickling broadcast.state (s)" in rank.texts.values()


@pytest.mark.parametrize("busy", long_too(0, long=[1]))
def test_ranks_that_are_late_by_an_operation_of_their_own_are_not_blamed(
    tmp_path: Path, busy: int
) -> None:
    path = tmp_path / "t.json"
    run_ranks(4, pairs.train, 40, busy, env={"HOROVOD_TIMELINE": str(path)})
    analysis = analyse(read_recording(path))
    names = {(one.name, one.process_set) for one in analysis.owners if one.call == "allreduce"}
    assert names == {("gradients", 0), ("table0", 1), ("table1", 2)}
    found = findings(analysis)
    assert not [one for one in found if one.kind.endswith("straggler")]
    first = found[0]
    who, others = (("0, 1", "2, 3"), ("2, 3", "0, 1"))[busy]
    assert first.kind == "blocking allreduce in every step"
    assert f"averages table{busy} of process set {1 + busy} (ranks {who})" in first.sentence
    assert f"meanwhile ranks {others} wait for ranks {who}" in first.sentence
    assert first.interval[0] > 0
    assert f"Ranks {who} are late because of an operation" in lateness(numbers_of(analysis, found))
