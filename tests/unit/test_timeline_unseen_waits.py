"""Recordings that do not show when the program waits, as of TensorFlow's graphs and of MXNet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Call,
    Job,
    Late,
    Tensor,
    planted,
    recording,
    step_seconds,
    tensors,
)

from hvdtune.timeline import api
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.answers import PARTS
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.record.layout import NONE, Recording
from hvdtune.timeline.report import comparison, comparison_text
from hvdtune.timeline.report.document import numbers_of

TENSORFLOW, TORCH = "tensorflow 2.21.0", "torch 2.13.0"
JOB = Job(steps=40, framework=TENSORFLOW)
LATE = replace(JOB, late=(Late(2, 0.030),))


def unseen(job: Job) -> Recording:
    """The job's recording if the engine blocks no thread."""
    whole = recording(job)
    for one in whole.ranks.values():
        one.streams["waits"] = one.waits[:0]
    return whole


def waiting_for_something_else(job: Job) -> Recording:
    """The job's recording if each step waits in the engine, but not until a gradient is there."""
    whole = recording(job)
    for one in whole.ranks.values():
        one.waits["end"] = one.waits["begin"] - 10_000
        one.waits["begin"] -= 20_000
    return whole


def told(job: Job) -> list[Finding]:
    return findings(analyse(unseen(job)))


def report(job: Job) -> tuple[dict[str, Any], str]:
    """The document, and the text on one line."""
    analysis = analyse(unseen(job))
    numbers = numbers_of(analysis, findings(analysis))
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    return numbers, " ".join(api.text(numbers).split())


@pytest.mark.parametrize(
    ("framework", "why"),
    [
        (TENSORFLOW, "TensorFlow's graphs start operations"),
        ("keras 3.10.0, tensorflow 2.21.0", "TensorFlow's graphs start operations"),
        ("mxnet 1.9.1", "MXNet's engine starts operations"),
        ("", "the engine hardly ever blocked one of its threads"),  # an earlier version's
    ],
)
def test_it_is_said_that_waits_are_not_recorded(framework: str, why: str) -> None:
    [found] = told(replace(JOB, framework=framework))
    assert found.kind == "waits not recorded"
    assert found.sentence.startswith("The recording does not show when this program waits")
    assert why in found.sentence
    assert (found.gain, found.interval) == (0, (0, 0))


def test_nothing_is_said_of_what_depends_on_waits() -> None:
    job = replace(LATE, overlap=False)
    numbers, text = report(job)
    overlap, found = numbers["overlap"], numbers["waterfall"]
    assert not overlap["shows_waits"]
    assert overlap["step_s"] == pytest.approx(step_seconds(job), rel=0.02)
    unknown = ("overlap_share", "exposed_share", "ideal_free_communication_s", "ideal_no_skew_s")
    assert [overlap[name] for name in unknown] == [None] * 4
    assert (found["typical"], found["mean"], found["ranks"]) == (None, None, [])
    assert numbers["accounting"] is None
    assert {one["blocked_s"] for one in numbers["owners"]} == {None}
    for strip in numbers["strips"]:
        for lanes in strip["ranks"]:
            assert not lanes["compute"]
            assert not lanes["blocked"]
            assert lanes["communication"]
    table = analyse(unseen(job)).waterfall
    assert table[[*PARTS, "exposed_s", "overlapped_s"]].isna().all(axis=None)
    assert (table["communication_s"] > 0).all()
    # What does not depend on waits is there.
    assert numbers["sizes"][0]["busbw_gbps"] > 0
    assert numbers["fusion"]["batches_per_step"] >= 1
    for untrue in ("Nothing to gain", "is hidden.", "Where a step goes", "compute"):
        assert untrue not in text
    assert "blocked in communication is unknown: at most" in text
    page = api.page(numbers)
    assert "does not show when this program waits" in page
    assert "communication hidden" not in page


def test_a_late_rank_is_named_by_its_lateness() -> None:
    first, last = told(LATE)
    assert first.kind == "persistent straggler"
    assert "100 % of the steps, rank 2 (host host0, pid 1002) is late, typically by 30 ms" in (
        first.sentence
    )
    assert "How long the others waited is not recorded" in first.sentence
    assert last.kind == "waits not recorded"
    truth = 1 - step_seconds(JOB) / step_seconds(LATE)
    assert first.gain == 0
    assert first.interval == (0, pytest.approx(truth, rel=0.1))
    numbers, text = report(LATE)
    assert numbers["lateness"]["typical_ms"]["2"] == pytest.approx(30, rel=0.02)
    assert "Late ranks: Rank 2 (host0) is late throughout: 30.0 ms in a typical step." in text
    assert "No rank is late" not in text


@pytest.mark.parametrize(
    ("late", "kind", "when"),
    [
        ((Late(1, 0.030, 40, 60),), "transient", "In steps 40 to 60, rank 1"),
        ((Late(1, 2.0, 50, 50),), "transient", "In step 50, rank 1"),
        ((Late(1, 0.250, 10, None, every=10),), "recurring", "Every 10th step, rank 1"),
        ((Late(1, 0.020), Late(3, 0.020)), "persistent", "ranks 1, 3 are late together"),
    ],
)
def test_ranks_that_are_late_at_times_or_together(
    late: tuple[Late, ...], kind: str, when: str
) -> None:
    first, *_, last = told(replace(JOB, steps=100, noise=0.01, late=late))
    assert first.kind == f"{kind} straggler"
    assert when in first.sentence
    assert last.kind == "waits not recorded"


def test_ranks_that_are_late_by_turns_are_not_named() -> None:
    job = replace(JOB, steps=60, noise=0.3)
    assert [one.kind for one in told(job)] == ["waits not recorded"]
    _, text = report(job)
    assert "Late ranks: No rank is late more often than chance explains" in text


@pytest.mark.parametrize("name", ["late", "late for a while", "stalled"])
@pytest.mark.parametrize("overlap", [True, False])
def test_what_is_said_to_be_the_most_is_no_less_than_what_it_is(name: str, overlap: bool) -> None:
    job = replace(planted()[name][0], overlap=overlap)
    known = analyse(recording(job))
    most = analyse(unseen(replace(job, framework=TENSORFLOW)))
    assert most.overlap.exposed_at_most >= known.overlap.exposed_share - 0.001
    delays = [one.lateness.groupby("step")["delay_s"].max() for one in (known, most)]
    assert (delays[1] >= delays[0] - 1e-5).all()
    planted_s = 65.0 if name == "stalled" else 0.030
    assert delays[1].max() == pytest.approx(planted_s, rel=0.1)


@pytest.mark.parametrize(
    ("framework", "shown"),
    [(TENSORFLOW, False), (TORCH, True), ("jax 0.7.1", True), ("", True)],
)
def test_waits_for_something_else_do_not_show_those_of_graphs(framework: str, shown: bool) -> None:
    """The program waits for another operation in each step, but for none of the gradients."""
    whole = waiting_for_something_else(replace(JOB, framework=framework))
    assert analyse(whole).overlap.shows_waits == shown


def test_a_wait_for_the_loss_does_not_show_those_for_gradients() -> None:
    """An eager call in each step, beside a graph. Both have one batch."""
    own, loss = tensors(1, 20 << 20), Call(Tensor("allreduce.loss", 4))
    whole = recording(replace(JOB, tensors=own, calls=(loss,)))
    for one in whole.ranks.values():
        one.streams["waits"] = one.waits[one.waits["name"] != NONE]
    analysis = analyse(whole)
    assert not analysis.overlap.shows_waits
    assert [one.kind for one in findings(analysis)] == ["waits not recorded"]


@pytest.mark.parametrize(
    "framework", [TORCH, "numpy 2.1.0", "jax 0.7.1", "keras 3.10.0, torch 2.13.0"]
)
def test_what_such_faces_have_not_waited_for_was_done(framework: str) -> None:
    """All that they wait for is in the engine."""
    assert [one.kind for one in told(replace(JOB, framework=framework))] == ["compute bound"]


@pytest.mark.parametrize("until_enqueued", [True, False])
def test_operations_on_gpus_may_be_done_before_the_gpu_is(until_enqueued: bool) -> None:
    job = replace(JOB, framework=TORCH)
    whole = waiting_for_something_else(job) if until_enqueued else unseen(job)
    for one in whole.ranks.values():
        one.identity.settings["HOROVOD_ENABLE_ASYNC_COMPLETION"] = True
    [found] = findings(analyse(whole))
    assert found.kind == "waits not recorded"
    assert "HOROVOD_ENABLE_ASYNC_COMPLETION is on" in found.sentence


@pytest.mark.parametrize("framework", [TENSORFLOW, "jax 0.7.1", "keras 3.10.0, jax 0.7.1"])
def test_compiled_functions_wait_on_any_thread(framework: str) -> None:
    job = replace(JOB, overlap=False, framework=framework)
    whole = recording(job)
    for one in whole.ranks.values():
        one.waits["thread"] = np.arange(len(one.waits)) % 8
    found, expected = analyse(whole).overlap, analyse(recording(job)).overlap
    assert found.shows_waits
    assert found.exposed_share == pytest.approx(expected.exposed_share)


def test_lanes_that_a_recording_does_not_show_are_neither_drawn_nor_explained() -> None:
    """Even if some waits are recorded. If it shows them, there may be none in a step."""
    graphs = waiting_for_something_else(JOB)
    for whole, shows in ((graphs, False), (unseen(replace(JOB, framework=TORCH)), True)):
        analysis = analyse(whole)
        numbers = numbers_of(analysis, findings(analysis))
        assert not any(lanes["blocked"] for one in numbers["strips"] for lanes in one["ranks"])
        page = api.page(numbers).partition('id="strip-typical"')[2].partition("</figure>")[0]
        assert [text in page for text in ("</span>blocked</li>", "Three lanes")] == [shows] * 2


def test_calls_of_tensorflow_that_wait_in_the_engine_are_judged_as_usual() -> None:
    """Eager calls, and functions that XLA compiles."""
    job = replace(JOB, overlap=False)
    analysis = analyse(recording(job))
    assert analysis.overlap.shows_waits
    assert analysis.overlap.overlap_share < 0.1
    assert "waits not recorded" not in {one.kind for one in findings(analysis)}


def test_waits_in_a_few_steps_do_not_show_those_of_the_others() -> None:
    """Metrics are averaged at the end of an epoch."""
    whole = recording(replace(JOB, framework=""))
    for one in whole.ranks.values():
        one.streams["waits"] = one.waits[:2]
    assert not analyse(whole).overlap.shows_waits


def test_a_single_rank_has_nobody_to_wait_for() -> None:
    assert analyse(unseen(replace(JOB, ranks=1))).overlap.shows_waits


def test_runs_without_waits_are_compared_by_whole_steps() -> None:
    slow, quick = (analyse(unseen(job)) for job in (LATE, JOB))
    known = analyse(recording(JOB))
    for a, b in ((slow, quick), (slow, known)):
        numbers = comparison.compare(a, b)
        json.dumps(numbers, allow_nan=False)
        assert "faster" in numbers["verdict"]
        assert "because" not in numbers["verdict"]
        assert numbers["parts"] == numbers["mean_causes"] == []
        assert "The recording of a does not show when its program waits" in numbers["notes"][0]
        assert "by cause" not in comparison_text.text(numbers)


def test_phases_contain_the_waits() -> None:
    job = replace(JOB, steps=12, phases=True, input=0.010, tensors=tensors(4))
    analysis = analyse(unseen(job))
    names = [name for name in analysis.phases.columns if name not in ("rank", "step")]
    sums = analysis.phases[names].sum(axis=1)
    assert np.allclose(sums, analysis.waterfall["step_s"], atol=1e-9)
    text = " ".join(api.text(numbers_of(analysis, findings(analysis))).split())
    assert "What a step consists of, waits included, ms a step" in text
