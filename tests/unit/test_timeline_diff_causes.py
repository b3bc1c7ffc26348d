"""`hvdtune diff` names whom the others wait for as the two reports do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support.recordings.synthetic_capture import Job, Late, planted, recording

from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.answers import Analysis
from hvdtune.timeline.report import comparison, comparison_text

HEALTHY = Job(steps=60, noise=0.01)
SLOW = replace(HEALTHY, late=(Late(2, 0.030),))
CURED = replace(HEALTHY, seed=1)


@cache
def analysed(job: Job) -> Analysis:
    return analyse(recording(job))


@cache
def compared(a: Job, b: Job) -> dict[str, object]:
    return comparison.compare(analysed(a), analysed(b))


def because(a: Job, b: Job) -> str:
    return str(compared(a, b)["verdict"]).partition("because ")[2]


PAUSES = tuple(Late(1, 0.2, step, step) for step in range(5, 60, 10))


@pytest.mark.parametrize(
    ("ill", "who"),
    [
        (SLOW, "rank 2 {} holds the others up ("),
        (replace(HEALTHY, late=(Late(1, 0.02), Late(3, 0.02))), "ranks 1 and 3 {} hold the others"),
        (replace(HEALTHY, late=(Late(0, 0.03, 20, 40),)), "rank 0 {} holds the others up ("),
        (replace(HEALTHY, late=PAUSES), "rank 1 {} holds the others up ("),
        (replace(HEALTHY, noise=0.3), "ranks {} take turns in being late ("),
    ],
    ids=["slow", "two", "a while", "pauses", "turns"],
)
def test_who_no_longer_holds_the_others_up_and_who_does_now(ill: Job, who: str) -> None:
    cured = because(ill, CURED)
    assert cured.startswith(who.format("no longer"))
    assert "compute takes" not in cured  # what the late rank computed longer is no cause of its own
    back = because(CURED, ill)
    assert back.startswith(who.format("now"))


def test_the_cost_is_that_of_the_report() -> None:
    [cause, *_] = compared(SLOW, CURED)["mean_causes"]  # type: ignore[misc]
    assert cause["ranks"] == [2]
    assert cause["a_s"] == pytest.approx(0.030, rel=0.05)
    assert cause["b_s"] == 0


def test_a_rank_that_is_less_late_is_told_with_both_times() -> None:
    text = because(SLOW, replace(CURED, late=(Late(2, 0.012),)))
    assert text.startswith("waiting for rank 2 takes 1")
    assert "instead of " in text


def test_two_causes_are_told() -> None:
    bad = replace(planted()["no overlap"][0], steps=60, late=(Late(1, 0.02),))
    good = replace(planted()["no overlap"][1], steps=60)
    text = because(bad, good)
    assert "rank 1 no longer holds the others up" in text
    assert "reduction takes" in text


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_nobody_is_named_in_runs_of_equal_ranks(noise: float) -> None:
    numbers = compared(replace(HEALTHY, noise=noise), replace(CURED, noise=noise, backward=0.03))
    assert not [one for one in numbers["causes"] if one["ranks"]]  # type: ignore[attr-defined]
    assert "the others up" not in str(numbers["verdict"])


def test_both_lists_sum_to_their_steps() -> None:
    numbers = compared(SLOW, CURED)
    for run in ("a", "b"):
        whole = numbers[run]["overlap"]["step_s"]  # type: ignore[index]
        causes = numbers["mean_causes"]
        assert sum(one[f"{run}_s"] for one in causes) == pytest.approx(whole)  # type: ignore[attr-defined]
    text = comparison_text.text(numbers)
    assert "The mean step by cause, ms" in text
    assert "waiting for rank 2" in text
