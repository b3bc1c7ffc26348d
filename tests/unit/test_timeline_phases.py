"""What a rank's own time goes to: the split by marks of phases, and what is found by it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    Late,
    describing,
    recording,
    step_seconds,
    tensors,
)

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis import phases
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.layout import MARK, Identity, Mark, RankRecording, Recording
from hvdtune.timeline.report.document import numbers_of
from hvdtune.timeline.report.text import text
from hvdtune.timeline.viewers.view import view

JOB = Job(
    steps=24, tensors=tensors(8), noise=0.02, phases=True, before=0.0005, input=0.0005, cpus=8
)
OWN = {"slow input", "slow update", "work beside training"}


@cache
def verdict(job: Job) -> list[Finding]:
    return findings(analyse(recording(job)))


def late(rank: int, seconds: float, phase: str, **more: int) -> tuple[Late, ...]:
    return (Late(rank, seconds, phase=phase, **more),)


def test_phases_of_a_step_are_its_computing_and_each_is_as_long_as_it_was() -> None:
    job = replace(JOB, input=0.005, before=0.002, evaluation=0.003, noise=0.0)
    analysis = analyse(recording(job))
    table = analysis.phases
    names = list(table.columns[2:])
    assert names == ["input", "before", "forward", "backward", "update", "evaluation", "other"]
    assert np.allclose(table[names].sum(axis=1), analysis.waterfall["compute_s"], atol=1e-12)
    means = table[names].mean()
    for name, seconds in {
        "input": 0.005, "before": 0.002, "forward": 0.010, "backward": 0.020, "update": 0.001,
        "evaluation": 0.003,
    }.items():  # fmt: skip
        assert means[name] == pytest.approx(seconds, rel=0.02), name
    assert means["other"] < 1e-4


def test_a_recording_without_phases_has_none() -> None:
    analysis = analyse(recording(replace(JOB, phases=False)))
    assert analysis.phases.empty
    assert numbers_of(analysis, findings(analysis))["phases"] is None
    assert phases.where(analysis, np.arange(5), [1]) == ""


def one_rank(*marks: tuple[float, int, str]) -> RankRecording:
    """A rank with marks of phases at these milliseconds."""
    names = sorted({name for _, _, name in marks})
    table = np.zeros(len(marks), MARK)
    for row, (time, value, name) in zip(table, marks, strict=True):
        row["time"], row["value"] = round(1e6 * time), value
        row["kind"], row["text"] = int(Mark.PHASE), names.index(name)
    one = RankRecording(Identity("job", 0, 1, 0, "host", 1, "0"), texts=names)
    one.streams["marks"] = table
    return one


def in_pieces(*marks: tuple[float, int, str]) -> list[tuple[float, float, str]]:
    found = phases.pieces(one_rank(*marks))
    return [
        (b / 1e6, e / 1e6, name)
        for b, e, name in zip(found.begin, found.end, found.name, strict=True)
    ]


def test_the_innermost_phase_counts() -> None:
    marks = (1, 1, "update"), (2, 1, "forward"), (3, 0, "forward"), (5, 0, "update")
    assert in_pieces(*marks) == [(1, 2, "update"), (2, 3, "forward"), (3, 5, "update")]


def test_a_phase_of_the_user_owns_what_is_no_training() -> None:
    assert in_pieces(
        (1, 1, "validation"), (2, 1, "input"), (3, 0, "input"), (4, 0, "validation")
    ) == [(1, 2, "validation"), (2, 3, "validation"), (3, 4, "validation")]
    assert in_pieces((1, 1, "epoch"), (2, 1, "backward"), (3, 0, "backward"), (4, 0, "epoch")) == [
        (1, 2, "epoch"),
        (2, 3, "backward"),
        (3, 4, "epoch"),
    ]


def test_a_phase_that_was_left_by_an_exception_ends_with_what_it_is_in_or_when_it_comes_again():
    assert in_pieces((1, 1, "a"), (2, 1, "update"), (4, 0, "a")) == [(1, 2, "a"), (2, 4, "update")]
    assert in_pieces((1, 1, "update"), (3, 1, "update"), (4, 0, "update")) == [
        (1, 3, "update"), (3, 4, "update"),
    ]  # fmt: skip
    assert in_pieces((1, 0, "input"), (2, 1, "input")) == []


def test_a_mark_may_be_called_like_a_column() -> None:
    job = replace(JOB, ranks=2, steps=6)
    whole = recording(job)
    for one in whole.ranks.values():
        one.texts = ["step" if name == "input" else name for name in one.texts]
    assert "step (mark)" in analyse(whole).phases.columns


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        (replace(JOB, input=0.020), "for input: for"),
        (replace(JOB, input=0.060, ranks=2, overlap=False), "for input: for"),
        (replace(JOB, before=0.012, ranks=3), "between the update and the forward pass"),
        (replace(JOB, before=0.025, input=0.0, cpus=2), "between the update and the forward pass"),
    ],
)
def test_slow_input_of_all_ranks(slow: Job, said: str) -> None:
    found = verdict(slow)
    truth = 1 - step_seconds(replace(slow, input=0, before=0)) / step_seconds(slow)
    assert found[0].kind == "slow input"
    assert said in found[0].sentence
    assert found[0].gain == pytest.approx(truth, rel=0.15)
    assert found[0].interval[0] <= truth <= found[0].interval[1]
    assert not any(one.kind.endswith("straggler") for one in found)


@pytest.mark.parametrize(
    "slow",
    [
        replace(JOB, optimizer=0.040),
        replace(JOB, optimizer=0.150, ranks=2),
        replace(JOB, optimizer=0.030, tensors=tensors(20, 4096)),
    ],
)
def test_slow_update_of_all_ranks(slow: Job) -> None:
    found = verdict(slow)
    truth = 1 - step_seconds(replace(slow, optimizer=0.001)) / step_seconds(slow)
    assert found[0].kind == "slow update"
    assert found[0].interval[0] <= truth <= found[0].interval[1]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_update_is_held_against_that_of_its_own_kind(name: str) -> None:
    found = findings(
        analyse(describing(recording(replace(JOB, optimizer=0.012)), {"update": name}))
    )
    assert ("slow update" in {one.kind for one in found}) == (name == "SGD")


@pytest.mark.parametrize(("passes", "advised"), [(None, 2), (4, 8)])
def test_who_accumulates_gradients_is_told_to_do_so_more_often(passes, advised) -> None:
    job = replace(JOB, ranks=2, tensors=tensors(8, 32 << 20), optimizer=0.4)
    program = {"update": "Adam"} if passes is None else {"update": "Adam", "passes": passes}
    found = findings(analyse(describing(recording(job), program)))
    [told] = [one for one in found if one.kind == "slow update"]
    assert f"backward_passes_per_step={advised})" in told.action


def test_advice_about_an_update_names_pytorch_only_where_it_is_used() -> None:
    for framework in ("numpy 2.1.0", "jax 0.7.1"):
        slow = replace(JOB, optimizer=0.040, framework=framework)
        told = {one.kind: one for one in verdict(slow)}["slow update"]
        others = ("torch", "optimizer", "DistributedOpt")
        assert not [word for word in others if word in told.action]
        assert "; an efficient Adam would take about" in told.sentence
        long = replace(slow, ranks=2, tensors=tensors(8, 32 << 20), optimizer=0.4)
        assert "slow update" not in {one.kind for one in verdict(long)}  # only fused=True helps


@pytest.mark.parametrize("slow", [{"input": 0.020}, {"before": 0.012, "ranks": 3}])
def test_advice_about_input_names_pytorch_only_where_it_is_used(slow) -> None:
    for framework, there in (("torch 2.13.0", True), ("jax 0.7.1", False)):
        found = verdict(replace(JOB, framework=framework, **slow))
        told = {one.kind: one.action for one in found}["slow input"]
        assert ("DataLoader(" in told) == there


@pytest.mark.parametrize("seconds", [0.010, 0.020, 0.060])
def test_work_beside_training_in_every_step(seconds: float) -> None:
    slow = replace(JOB, evaluation=seconds)
    truth = 1 - step_seconds(JOB) / step_seconds(slow)
    found = verdict(slow)
    assert found[0].kind == "work beside training"
    assert found[0].gain == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        replace(JOB, ranks=2, noise=0.1),
        replace(JOB, ranks=8, noise=0.05),
        replace(JOB, input=0.002),
        replace(JOB, forward=0.001, backward=0.002, input=0.0003),  # quick steps
        # As long as Adam takes for so many bytes.
        replace(JOB, optimizer=0.012),
        # Every rank has slow input now and then: that is not all ranks' in every step.
        replace(JOB, late=tuple(Late(r, 0.03, 1 + r, None, "input", 4) for r in range(4))),
        # One rank's.
        replace(JOB, late=late(1, 0.03, "input")),
        replace(JOB, late=late(1, 0.06, "update")),
        replace(JOB, late=late(0, 0.06, "evaluation")),
        # Late for another reason.
        replace(JOB, late=late(3, 0.03, "backward")),
        replace(JOB, threshold=0, tensors=tensors(100, 1 << 16)),
        replace(JOB, overlap=False),
        # What the others do is not known.
        replace(JOB, input=0.020, all_ranks=False),
    ],
)
def test_phases_that_are_no_cause_are_not_blamed(job: Job) -> None:
    assert not OWN & {one.kind for one in verdict(job)}


def test_what_is_handed_to_a_device_is_not_judged_by_the_time_that_handing_over_takes() -> None:
    for job in (replace(JOB, before=0.020), replace(JOB, optimizer=0.080)):
        whole = recording(job)
        for one in whole.ranks.values():
            own = one.streams["marks"]
            own["value"][(own["kind"] == int(Mark.PHASE)) & (own["value"] == 1)] = 2
        assert not OWN & {one.kind for one in findings(analyse(whole))}


@pytest.mark.parametrize(
    ("phase", "said", "do"),
    [
        ("input", "Its input arrives 30 ms later than the others'.", "its share of the data"),
        ("before", "It spends 30 ms more than the others before the forward", "load ahead"),
        ("forward", "Its forward pass takes 30", "longer sequences"),
        ("backward", "Its backward pass takes 30 ms longer", "longer sequences"),
        ("update", "Its optimizer's update takes 30 ms longer", "its optimizer"),
        ("evaluation", "It spends 30 ms more than the others on evaluation.", "Evaluate on all"),
        ("checkpoint", "It spends 30 ms more than the others in torch.save.", "Save in the"),
        ("tokenizing", "It spends 30 ms more than the others in “tokenizing”.", "“tokenizing”"),
    ],
)
def test_a_straggler_is_told_with_its_phase(phase: str, said: str, do: str) -> None:
    recorded = phase if phase not in ("checkpoint", "tokenizing") else "evaluation"
    whole = recording(replace(JOB, late=late(2, 0.030, recorded)))
    for one in whole.ranks.values():
        one.texts = [phase if name == recorded else name for name in one.texts]
    [first, *_] = findings(analyse(whole))
    assert first.kind == "persistent straggler"
    assert "Rank 2" in first.sentence
    assert said in first.sentence
    assert do in first.action


@pytest.mark.parametrize("phase", ["input", "backward", "update"])
def test_a_straggler_for_a_while_now_and_then_and_in_company(phase: str) -> None:
    words = {"input": "input", "backward": "backward pass", "update": "optimizer's update"}[phase]
    long = replace(JOB, steps=60)
    jobs = {
        "recurring straggler": replace(long, late=late(1, 0.15, phase, first=5, every=10)),
        "transient straggler": replace(long, late=late(1, 0.03, phase, first=20, last=35)),
        "persistent straggler": replace(JOB, late=late(1, 0.03, phase) + late(3, 0.03, phase)),
    }
    for kind, job in jobs.items():
        [first, *_] = verdict(job)
        assert first.kind == kind
        assert words in first.sentence, first.sentence


def test_where_the_extra_time_of_steps_of_all_ranks_lies() -> None:
    every = tuple(Late(r, 0.1, 5, None, "evaluation", 10) for r in range(4))
    analysis = analyse(recording(replace(JOB, steps=40, late=every)))
    slow = np.arange(5, 40, 10)
    assert phases.where(analysis, slow, [0, 1, 2, 3]) == "evaluation"
    assert phases.excess(analysis, slow, [0, 1, 2, 3])["evaluation"] == pytest.approx(0.1, rel=0.05)
    assert phases.where(analysis, np.array([999]), [0, 1, 2, 3]) == ""


def test_no_phase_is_named_where_ranks_differ_in_what_has_no_mark() -> None:
    whole = recording(replace(JOB, late=late(2, 0.030, "evaluation")))
    for one in whole.ranks.values():
        marks = one.streams["marks"]
        gone = [i for i, name in enumerate(one.texts) if name in ("evaluation", "forward")]
        one.streams["marks"] = marks[~np.isin(marks["text"], gone)]
    [first, *_] = findings(analyse(whole))
    assert first.kind == "persistent straggler"
    assert first.sentence.endswith("% of the time.")


def whole_report(job: Job) -> tuple[dict, str]:
    analysis = analyse(recording(job))
    numbers = numbers_of(analysis, findings(analysis))
    return numbers, text(numbers)


def test_reports_show_phases_and_who_differs() -> None:
    numbers, shown = whole_report(replace(JOB, late=late(2, 0.030, "backward")))
    found = numbers["phases"]
    assert [one["name"] for one in found["parts"] if one["differs"]] == ["backward"]
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2, 3]
    assert found["ranks"][2]["parts_s"]["backward"] == pytest.approx(0.050, rel=0.1)
    assert sum(found["mean"].values()) == pytest.approx(
        numbers["waterfall"]["mean"]["parts_s"]["compute_s"]
    )
    assert "What computing consists of, ms a step (*: ranks differ)" in shown
    assert "backward pass *" in shown


def test_viewers_show_phases_as_bars_of_a_lane() -> None:
    whole: Recording = recording(replace(JOB, ranks=2, steps=3))
    lines = "\n".join(str(line) for line in view(whole).lines)
    assert lines.count('"name":"backward"') == 2 * 3
    assert "MARK 10" not in lines
