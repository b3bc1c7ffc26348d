"""What a report says of real ranks that do not get the CPUs that they could use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rank_programs import cpu_causes
from support.jobs.ranks import run_ranks

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.report.cpus import numbers

pytestmark = [pytest.mark.long]
SECONDS = 6.0


def judged(folder: Path, np: int, *args: object) -> tuple[list[dict[str, float]], list[Finding]]:
    """The report's rows of CPUs and its findings, of a job of cpu_causes.train."""
    path = folder / "t.json"
    run_ranks(np, cpu_causes.train, SECONDS, *args, env={"HOROVOD_TIMELINE": str(path)})
    analysis = analyse(read_recording(str(path)))
    return numbers(analysis), findings(analysis)


def test_busy_loops_beside_the_ranks_are_told_first(tmp_path):
    cpus = len(os.sched_getaffinity(0))
    rows, found = judged(tmp_path, min(2, cpus), 1, 3 * cpus)
    assert found[0].kind == "CPUs taken"
    assert "process" in found[0].sentence
    assert found[0].gain > 0.3
    for row in rows:
        assert row["cpus_of_others"] > 0.3 * cpus
        assert row["threads_computing"] < 1.5


def test_threads_that_compute_are_counted(tmp_path):
    cpus = len(os.sched_getaffinity(0))
    rows, found = judged(tmp_path, 2, 4 * cpus)
    for row in rows:
        assert row["threads_set"] == 4 * cpus
        assert row["threads_computing"] > 2 * cpus
        assert row["threads_waiting"] > 0.5
    for one in found:
        if one.kind == "too many threads":  # not worth a sentence where others have the CPUs
            assert f"OMP_NUM_THREADS={max(1, cpus // 2)} " in one.action


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_ranks_bound_to_one_cpu_are_told_so(tmp_path):
    rows, found = judged(tmp_path, 2, 1, 0, True)
    assert {row["allowed_cpus"] for row in rows} == {str(min(os.sched_getaffinity(0)))}
    bound = {one.kind: one for one in found}["bound to the same CPU"]
    assert bound.sentence.startswith("Ranks 0 and 1 on host")
    assert bound.gain > 0.1
