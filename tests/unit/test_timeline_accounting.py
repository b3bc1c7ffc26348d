"""One accounting: it closes, has the planted times, and no sentence contradicts another."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    Late,
    Stall,
    Tensor,
    planted,
    recording,
    step_seconds,
)

from hvdtune.timeline import api
from hvdtune.timeline.advice import accounting
from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.report import document, sentences

HEALTHY = Job(steps=60, noise=0.01)
FUSION, OVERLAP = planted()["threshold 0"], planted()["no overlap"]
PAUSES = tuple(Late(1, 0.2, step, step) for step in range(5, 100, 10))
#: Name → the ill job, who or what is told to take the time, and the time of the cured job.
ILL: dict[str, tuple[Job, str, Job]] = {
    "slow rank": (replace(HEALTHY, late=(Late(2, 0.030),)), "waiting for rank 2", HEALTHY),
    "two of them": (
        replace(HEALTHY, late=(Late(1, 0.020), Late(3, 0.020))),
        "waiting for ranks 1 and 3",
        HEALTHY,
    ),
    "pauses": (
        replace(HEALTHY, steps=100, late=PAUSES), "waiting for rank 1", replace(HEALTHY, steps=100),
    ),
    "a while": (replace(HEALTHY, late=(Late(1, 0.030, 20, 40),)), "waiting for rank 1", HEALTHY),
    "stall": (replace(HEALTHY, stall=Stall(3, 30, 5.0)), "waiting for rank 3", HEALTHY),
    "only rank 0 records": (
        replace(HEALTHY, late=(Late(2, 0.030),), all_ranks=False), "waiting for rank 2", HEALTHY,
    ),
    "jitter": (
        replace(HEALTHY, noise=0.3),
        "waiting for ranks that take turns",
        replace(HEALTHY, noise=0.0),
    ),
    "fusion off": (FUSION[0], "fusion threshold too small", FUSION[1]),
    "no overlap": (OVERLAP[0], "no overlap", OVERLAP[1]),
}  # fmt: skip


@cache
def numbers_of(job: Job) -> dict[str, Any]:
    """The document; every job is played once."""
    analysis = analyse(recording(job))
    return document.numbers_of(analysis, findings(analysis))


@pytest.mark.parametrize("name", ILL)
def test_it_closes_and_the_cause_takes_what_curing_it_saves(name: str) -> None:
    bad, title, good = ILL[name]
    numbers = numbers_of(bad)
    found = numbers["accounting"]
    assert sum(one["seconds"] for one in found["shares"]) == pytest.approx(found["step_s"])
    assert found["step_s"] == pytest.approx(numbers["overlap"]["step_s"])
    assert all(one["seconds"] >= -1e-12 for one in found["shares"])
    [cause] = [one for one in found["shares"] if one["title"] == title]
    saved = step_seconds(bad) - step_seconds(good)
    assert cause["seconds"] == pytest.approx(saved, rel=0.2)
    assert cause["finding"] == 0


@pytest.mark.parametrize("name", ILL)
def test_the_parts_that_are_told_sum_to_the_step_that_is_told(name: str) -> None:
    found = numbers_of(ILL[name][0])["accounting"]
    step, *parts = map(float, re.findall(r"([\d.]+) (?:ms|s|µs) ", found["sentence"]))
    assert sum(parts) == pytest.approx(step, abs=1e-9)


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.03])
def test_a_healthy_job_computes_and_nobody_is_waited_for(noise: float) -> None:
    numbers = numbers_of(replace(HEALTHY, noise=noise))
    kinds = [one["kind"] for one in numbers["accounting"]["shares"]]
    assert kinds == [accounting.COMPUTING, accounting.COMMUNICATION, accounting.NO_CAUSE]
    assert numbers["accounting"]["shares"][0]["share"] > 0.9
    assert not re.search(r"\d+ (is|are) (late|the latest)", sentences.lateness(numbers))


def test_waiting_that_no_finding_explains_has_no_cause() -> None:
    analysis = analyse(recording(replace(HEALTHY, noise=0.05)))
    shares = {one.kind: one.seconds for one in accounting.shares(analysis, [])}
    skew = float(analysis.waterfall["skew_wait_s"].mean())
    other = float(analysis.waterfall["other_s"].mean())
    assert shares[accounting.NO_CAUSE] == pytest.approx(skew + other)
    assert skew > 0.0005


def test_two_findings_do_not_have_the_same_second() -> None:
    analysis = analyse(recording(replace(HEALTHY, late=(Late(2, 0.030),))))
    [once, *_] = findings(analysis)
    one = accounting.shares(analysis, [once])
    twice = accounting.shares(analysis, [once, once])
    assert [share.seconds for share in one] == pytest.approx([share.seconds for share in twice])
    greedy = Finding("all of it", "", "", 1.0), Finding("again", "", "", 1.0)
    shares = accounting.shares(analysis, greedy)
    assert sum(share.seconds for share in shares) == pytest.approx(analysis.overlap.step_s)
    assert "again" not in {share.kind for share in shares}


def test_a_lack_of_cpus_has_no_more_of_computing_than_was_recorded() -> None:
    analysis = analyse(recording(replace(HEALTHY, noise=0.3)))
    step = analysis.overlap.step_s
    before = accounting.shares(analysis, [])
    taken = Finding("CPUs taken", "", "", 0.45, {"waiting_share": 0.3})
    computing, cause, communication, none = accounting.shares(analysis, [taken])
    assert computing.seconds == pytest.approx(before[0].seconds - 0.3 * step)
    assert cause.seconds == pytest.approx(0.45 * step, rel=0.2)
    assert none.seconds < before[-1].seconds
    assert communication.seconds <= before[1].seconds


def test_late_ranks_that_wait_for_each_other_are_not_waited_for_twice() -> None:
    bad = replace(HEALTHY, late=(Late(1, 0.020), Late(3, 0.060)))
    analysis = analyse(recording(bad))
    both = Finding("persistent straggler", "", "", 0.5, {"ranks": "1, 3"})
    cause = accounting.shares(analysis, [both])[1]
    assert cause.seconds == pytest.approx(step_seconds(bad) - step_seconds(HEALTHY), rel=0.05)


def test_what_is_found_of_a_rank_has_what_the_others_wait_for_it_whatever_its_kind() -> None:
    analysis = analyse(recording(replace(HEALTHY, late=(Late(2, 0.030),))))
    [_, cause, *_] = accounting.shares(
        analysis, [Finding("slow input", "", "", 0.4, {"rank": 2.0})]
    )
    assert cause.title == "slow input (rank 2)"
    assert cause.ranks == (2,)
    assert cause.seconds == pytest.approx(0.030, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "evidence"), [("metrics one by one", {}), ("orders differ", {"rank": 1.0})]
)
def test_what_is_sent_takes_communication_and_no_ranks_waiting(
    kind: str, evidence: dict[str, float]
) -> None:
    analysis = analyse(recording(FUSION[0]))
    told = accounting.shares(analysis, [Finding(kind, "", "", 0.05, dict(evidence))])
    found = told[1]
    rest = {one.kind: one.seconds for one in accounting.shares(analysis, [])}
    after = {one.kind: one.seconds for one in told}
    assert found.kind == found.title == kind
    assert after[accounting.COMPUTING] == rest[accounting.COMPUTING]
    assert after[accounting.COMMUNICATION] == pytest.approx(
        rest[accounting.COMMUNICATION] - found.seconds
    )


def test_a_stall_that_never_ended_is_in_no_step() -> None:
    analysis = analyse(recording(HEALTHY))
    endless = Finding("stalled rank", "", "", 0.9, {"stalled_s": 65.0, "rank": 1.0})
    assert accounting.shares(analysis, [endless]) == accounting.shares(analysis, [])


def test_advice_for_every_job_is_no_cause() -> None:
    huge = planted()["huge tensor last"][0]
    numbers = numbers_of(huge)
    assert "copies" in {one["kind"] for one in numbers["findings"]}
    assert "copies" not in {one["kind"] for one in numbers["accounting"]["shares"]}


@pytest.mark.parametrize(("batch", "part"), [(0.006, "computing"), (0.06, "communication")])
def test_where_nothing_stands_out_the_largest_part_is_told(batch: float, part: str) -> None:
    """A small alltoall, which no setting and no known change makes quicker."""
    one = Tensor("alltoall.x", 1 << 10, "alltoall")
    analysis = analyse(recording(replace(HEALTHY, noise=0.02, tensors=(one,), batch=batch)))
    [found] = findings(analysis)
    assert found.kind == "nothing stands out"
    assert f"The largest part of it is {part}" in found.sentence
    assert found.gain == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_the_sentence_about_late_ranks_names_nobody_whom_the_verdict_does_not(
    seed: int, noise: float
) -> None:
    numbers = numbers_of(Job(ranks=4, steps=40, noise=noise, seed=seed))
    named = {int(rank) for one in numbers["findings"] if one["kind"] in sentences.LATE_RANKS
             for rank in re.findall(r"\d+", str(one["evidence"].get("ranks", "")))}  # fmt: skip
    assert not named
    assert not re.search(r"[Rr]anks? \d", sentences.lateness(numbers))


def test_text_and_page_have_the_accounting_near_the_verdict() -> None:
    numbers = numbers_of(ILL["slow rank"][0])
    said = numbers["accounting"]["sentence"]
    assert said in " ".join(api.text(numbers).split())
    page = api.page(numbers)
    assert page.index("Verdict") < page.index(said) < page.index("What a step is made of")
    assert numbers_of(Job(steps=0))["accounting"] is None


def test_rounding_keeps_the_sum() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        values = random.exponential(10, random.integers(1, 8)).tolist()
        parts = accounting._rounded(values)
        assert sum(parts) == round(sum(values))
        assert all(abs(part - value) < 1 for part, value in zip(parts, values, strict=True))
