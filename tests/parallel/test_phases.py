"""What real jobs record of their phases, and what a report says by it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from rank_programs import numpy_phases, phases
from support.jobs.ranks import run_ranks

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.answers import Analysis
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.load import read_recording


def judged(path: Path) -> tuple[Analysis, list[Finding]]:
    analysis = analyse(read_recording(str(path)))
    return analysis, findings(analysis)


@pytest.mark.parametrize(
    ("load", "backward", "update", "kind", "said"),
    [
        (0.060, {}, 0.0, "slow input", "for input: for"),
        (0.0, {1: 0.064}, 0.0, "persistent straggler", "Its backward pass takes"),
        (0.0, {}, 0.060, "slow update", "optimizer's update"),
    ],
)
def test_phases_of_a_program_that_knows_nothing_of_them(
    tmp_path: Path, load: float, backward: dict[int, float], update: float, kind: str, said: str
) -> None:
    path = tmp_path / "t.json"
    result = run_ranks(2, phases.train, load, backward, update, env={"HOROVOD_TIMELINE": str(path)})
    assert all(value == [True, False, True] for value in result.values)
    analysis, [first, *_] = judged(path)
    assert first.kind == kind
    assert said in first.sentence
    means = analysis.phases.groupby("rank").mean()
    for rank in range(2):
        at_least = {"input": load, "backward": backward.get(rank, 0.004), "update": update}
        for phase, seconds in {**at_least, "forward": 0.004}.items():
            assert means.loc[rank, phase] >= 0.95 * seconds, phase


def test_nothing_is_hooked_while_nobody_records() -> None:
    assert all(v == [True, True, True] for v in run_ranks(2, phases.train, 0.0, {}, 0.0).values)


def test_what_is_hooked_works_as_before(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    values = run_ranks(2, phases.everything_still_works, env={"HOROVOD_TIMELINE": str(path)}).values
    assert all(wrong == [] for wrong in values)
    analysis, _ = judged(path)
    assert {"validation", "evaluation", "forward"} <= set(analysis.phases.columns)


def test_a_program_without_pytorch_says_what_it_does(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, numpy_phases.train, 15, 0.030, env={"HOROVOD_TIMELINE": str(path)})
    analysis, [first, *_] = judged(path)
    assert first.kind == "slow input"
    assert analysis.phases["input"].min() >= 0.029
