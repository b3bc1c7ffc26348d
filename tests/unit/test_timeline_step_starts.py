"""Steps that took long once: told in text, page and document, counted in nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, Late, Stall, Tensor, recording, tensors

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record.layout import Mark, Recording
from hvdtune.timeline.report import document, page
from hvdtune.timeline.report import text as report_text

JOB = Job(steps=30, tensors=tensors(5))
Numbers = dict[str, Any]


def report_of(recorded: Recording) -> Numbers:
    """The document; its start must be said in text and page, too."""
    analysis = analyse(recorded)
    numbers = document.numbers_of(analysis, findings(analysis))
    if numbers["start"]:
        said = numbers["start"]["sentence"]
        assert said in " ".join(report_text.text(numbers).split())
        assert said in page.page(numbers)
    return numbers


def check_blames(numbers: Numbers, ranks: set[int]) -> None:
    """These ranks are named as late or stalled, and no others."""
    kinds = ("persistent straggler", "transient straggler", "stalled rank")
    found = [one["evidence"]["rank"] for one in numbers["findings"] if one["kind"] in kinds]
    assert {int(rank) for rank in found} == ranks


def with_new_tensor(recorded: Recording, step: int) -> Recording:
    """The last tensor has another name from that step on."""
    for one in recorded.ranks.values():
        marks = one.marks[one.marks["kind"] == int(Mark.STEP)]
        begin = marks["time"][marks["value"] == step - 1][0]
        last = len(one.names) - 1
        one.names.append(replace(one.names[last], name="allreduce.another"))
        table = one.streams["tensors"]
        table["name"][(table["name"] == last) & (table["submitted"] > begin)] = last + 1
    return recorded


def without_marks(recorded: Recording) -> Recording:
    """Steps have to be found by names."""
    for one in recorded.ranks.values():
        one.streams["marks"] = one.marks[one.marks["kind"] != int(Mark.STEP)]
    return recorded


def test_the_first_step_is_told_and_blamed_on_nobody() -> None:
    numbers = report_of(recording(replace(JOB, late=(Late(2, 3.2, 1, 1),))))
    start = numbers["start"]
    assert start["seconds"] == pytest.approx(3.2, abs=0.1)
    assert [one["step"] for one in start["steps"]] == [1]
    assert start["steps"][0]["last_rank"] == 2
    assert start["sentence"].startswith("One-time start: the first step ended 3.2")
    assert "(rank 2 was last, by 3.2" in start["sentence"]
    assert "Not counted" in start["sentence"]
    check_blames(numbers, set())
    assert numbers["steps"]["count"] == 29


@pytest.mark.parametrize("last", [2, 3])
def test_the_first_steps_may_all_be_slow(last: int) -> None:
    numbers = report_of(recording(replace(JOB, late=(Late(1, 2.0, 1, last),))))
    assert [one["step"] for one in numbers["start"]["steps"]] == list(range(1, last + 1))
    check_blames(numbers, set())
    assert numbers["steps"]["first"] == last + 1
    assert numbers["overlap"]["step_s"] < 0.1
    assert numbers["steps"]["per_second"] > 10


def test_a_start_that_the_stall_check_reported() -> None:
    numbers = report_of(recording(replace(JOB, stall=Stall(3, 1, 65.0))))
    assert numbers["start"]["seconds"] > 60
    assert numbers["stalls"] == []
    check_blames(numbers, set())


def test_steps_found_by_names() -> None:
    numbers = report_of(without_marks(recording(replace(JOB, late=(Late(1, 2.0, 2, 2),)))))
    assert numbers["quality"]["steps_from"] == "names"
    # The late rank's own step before is as long: the step ends with its next submission.
    assert [one["step"] for one in numbers["start"]["steps"]] == [1, 2]
    assert numbers["start"]["seconds"] == pytest.approx(2.0, abs=0.2)
    check_blames(numbers, set())


def test_new_tensors_in_the_middle() -> None:
    recorded = with_new_tensor(recording(replace(JOB, late=(Late(2, 4.0, 15, 15),))), 15)
    numbers = report_of(recorded)
    assert [one["step"] for one in numbers["start"]["steps"]] == [15]
    assert numbers["start"]["steps"][0]["reason"] == "new tensors"
    assert "step 15, which has new tensors, took 4" in numbers["start"]["sentence"]
    check_blames(numbers, set())
    assert numbers["steps"]["wall_s"] < 2
    assert 15 not in set(np.ravel(numbers["lateness"]["steps"]).tolist())


def test_new_tensors_that_cost_nothing_are_no_start() -> None:
    numbers = report_of(with_new_tensor(recording(JOB), 15))
    assert numbers["start"] is None
    assert numbers["steps"]["count"] == 29


@pytest.mark.parametrize("changing", ["name", "size"])
def test_what_is_new_in_every_step_excuses_no_pause(changing: str) -> None:
    own = (*tensors(5), Tensor("allreduce.loss", 4))
    late = (Late(1, 0.25, 10, None, every=10),)
    recorded = recording(Job(steps=100, noise=0.02, tensors=own, late=late))
    for one in recorded.ranks.values():
        loss = one.names.pop()
        rows = np.flatnonzero(one.tensors["name"] == len(one.names))
        one.tensors["name"][rows] = len(one.names) + np.arange(len(rows))
        one.names += [
            replace(loss, name=f"allreduce.loss.{at}")
            if changing == "name"
            else replace(loss, bytes=4 * (at + 1))
            for at in range(len(rows))
        ]
    numbers = report_of(recorded)
    assert numbers["start"] is None
    assert numbers["findings"][0]["kind"] == "recurring straggler"


def test_a_rank_that_stops_in_the_middle_for_no_known_reason_is_still_named() -> None:
    numbers = report_of(recording(replace(JOB, stall=Stall(3, 15, 65.0))))
    assert numbers["start"] is None
    check_blames(numbers, {3})


def test_a_rank_that_is_late_in_every_step_is_still_named() -> None:
    numbers = report_of(recording(replace(JOB, late=(Late(1, 0.02),))))
    assert numbers["start"] is None
    check_blames(numbers, {1})


def test_both_a_start_and_a_late_rank_are_said() -> None:
    job = replace(JOB, late=(Late(2, 3.2, 1, 2), Late(1, 0.02)))
    numbers = report_of(recording(job))
    assert [one["step"] for one in numbers["start"]["steps"]] == [1, 2]
    check_blames(numbers, {1})


def test_what_comes_in_many_steps_is_no_start() -> None:
    job = replace(JOB, steps=12, late=(Late(2, 2.0, 1, 9),))
    numbers = report_of(recording(job))
    assert numbers["start"] is None
    check_blames(numbers, {2})


def test_a_recording_from_the_middle_of_a_job_has_no_start() -> None:
    recorded = recording(replace(JOB, late=(Late(2, 3.2, 2, 2),)))
    for one in recorded.ranks.values():
        steps = one.marks["kind"] == int(Mark.STEP)
        one.marks["value"][steps] += 500
    assert report_of(recorded)["start"] is None


def test_that_the_first_step_is_never_counted_is_said() -> None:
    text = " ".join(report_text.text(report_of(recording(JOB))).split())
    assert "The first step is not counted: nothing marks its beginning" in text
