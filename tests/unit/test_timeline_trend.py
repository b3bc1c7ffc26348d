"""Steps that become longer, and work now and then on all ranks: told as what they are, or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, Late, recording, step_seconds

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.analysis.trend import change, course
from hvdtune.timeline.evidence.finding import Finding

STEPS = 80
HEALTHY = Job(steps=STEPS, noise=0.02)
OWN = {
    *("drift", "slower since a step", "slower for a while"),
    *("periodic work", "pauses of all ranks"),
}
Extra = Callable[[int], float]


def longer(extra: Extra, *ranks: int, job: Job = HEALTHY) -> Job:
    """`ranks` (all if none are given) compute `extra`(step) s longer."""
    late = tuple(
        Late(rank, float(extra(step)), step, step)
        for rank in ranks or range(job.ranks)
        for step in range(1, job.steps + 1)
        if extra(step) > 0
    )
    return replace(job, late=late)


@cache
def verdict(job: Job) -> list[Finding]:
    return findings(analyse(recording(job)))


def lost(job: Job) -> float:
    return 1 - step_seconds(replace(job, late=())) / step_seconds(job)


def random_steps(count: int) -> set[int]:
    return set(np.random.default_rng(1).choice(np.arange(3, STEPS), count, replace=False).tolist())


PAUSED = random_steps(8)
TOLD: dict[str, tuple[Job, str, str, str]] = {
    "one rank's list grows": (
        longer(lambda s: 0.0005 * s, 1),
        *("drift", "Rank 1 (host host0, pid 1001) computes longer and longer, 0.4", "drift"),
    ),
    "of two ranks one, by the square": (
        longer(lambda s: 6e-6 * s * s, 0, job=replace(HEALTHY, ranks=2)),
        *("drift", "Rank 0 (host host0, pid 1000) computes longer and longer", "drift"),
    ),
    "all ranks": (
        longer(lambda s: 0.0005 * s),
        *("drift", "All ranks compute longer and longer, 0.4", "drift"),
    ),
    "two of four": (
        longer(lambda s: 0.0005 * s, 1, 2),
        *("drift", "Ranks 1, 2 compute longer and longer, 0.", "drift"),
    ),
    "from step 50 on": (
        longer(lambda s: 0.015 * (s >= 50)),
        *("slower since a step", "Since step 50 steps take 4", "interval"),
    ),
    "for a while": (
        longer(lambda s: 0.020 * (30 <= s < 50)),
        *("slower for a while", "In steps 30 to 49 a step takes 5", "interval"),
    ),
    "every 20th step": (
        longer(lambda s: 0.2 * (s % 20 == 0)),
        *("periodic work", "Every 20th step takes 200 ms longer on all ranks", "periodic"),
    ),
    "every 10th step, a little": (
        longer(lambda s: 0.025 * (s % 10 == 0)),
        *("periodic work", "Every 10th step takes 25 ms longer on all ranks", "periodic"),
    ),
    "at random": (
        longer(lambda s: 0.15 * (s in PAUSED)),
        *("pauses of all ranks", "8 of 79 steps take 150 ms longer on all ranks", "random"),
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_changes_along_the_run_is_told_first_with_what_it_costs(name):
    job, kind, sentence, pattern = TOLD[name]
    found = verdict(job)
    assert found[0].kind == kind
    assert sentence in found[0].sentence
    assert found[0].evidence["pattern"] == pattern
    assert found[0].gain == pytest.approx(lost(job), rel=0.12)
    assert [one.kind for one in found if one.kind in OWN] == [kind]
    assert not [one.kind for one in found if "straggler" in one.kind]


OTHERS = {
    "healthy": HEALTHY,
    "uneven": replace(HEALTHY, noise=0.3),
    "warm-up": longer(lambda s: 0.05 * float(np.exp(-s / 8))),
    "faster since step 40": longer(lambda s: 0.015 * (s < 40)),
    "one slow rank": longer(lambda s: 0.03, 2),
    "a rank is slow for a while": longer(lambda s: 0.03 * (30 <= s < 50), 2),
    "a rank pauses": longer(lambda s: 0.2 * (s % 10 == 0), 1),
    "one long step": longer(lambda s: 0.2 * (s == 33)),
    "every other step": longer(lambda s: 0.03 * (s % 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_jobs_have_no_course(name):
    assert not [one.sentence for one in verdict(OTHERS[name]) if one.kind in OWN]


@pytest.mark.parametrize("every", [10, 20])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_checkpoint_of_rank_0_is_told_with_its_period(ranks, every):
    job = longer(lambda s: 0.2 * (s % every == 0), 0, job=Job(ranks=ranks, steps=100, noise=0.02))
    found = verdict(job)[0]
    assert found.kind == "recurring straggler"
    assert f"Rank 0 (host host0, pid 1000) holds the others up in every {every}th" in found.sentence
    assert found.gain == pytest.approx(lost(job), rel=0.12)


def wandering(random: np.random.Generator, phi: float, count: int) -> np.ndarray:
    """An AR(1) series of standard deviation 1, [count]."""
    own = random.normal(0, 1, count + 60)
    for at in range(1, len(own)):
        own[at] += phi * own[at - 1]
    return own[60:] * np.sqrt(1 - phi**2)


def test_noise_has_no_course_even_if_neighbouring_steps_are_alike():
    random = np.random.default_rng(0)
    told = 0
    for trial in range(60):
        count = (40, 60, 100)[trial % 3]
        phi = (0.0, 0.5, 0.8, 0.95)[trial % 4]
        told += course(0.03 * (1 + 0.05 * wandering(random, phi, count))).kind != "steady"
    assert told <= 1


def test_communication_that_takes_longer_and_longer_is_no_ranks_fault():
    random = np.random.default_rng(2)
    computing = {rank: 0.03 * (1 + 0.02 * random.normal(0, 1, STEPS)) for rank in range(4)}
    communicating = 0.002 + 0.0003 * np.arange(STEPS)
    found = change(np.mean(list(computing.values()), axis=0) + communicating, computing,
                   communicating)  # fmt: skip
    assert found is not None
    assert (found.course.kind, found.ranks) == ("drift", ())
    assert found.course.growth == pytest.approx(0.0003 * STEPS, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_drift_of_all_ranks_is_seen_though_waiting_hides_it_in_the_steps(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    growing = np.linspace(0.030, 0.040, 80)
    computing = {rank: growing + random.normal(0, 2e-4, 80) for rank in range(ranks)}
    waiting = np.repeat(random.exponential(3e-3, 20), 4)  # alike in neighbouring steps
    steps = growing + waiting
    assert course(steps).kind == "steady"
    found = change(steps, computing, np.zeros(80))
    assert found is not None
    assert (found.course.kind, found.everywhere) == ("drift", True)
    assert found.course.growth == pytest.approx(0.010, rel=0.1)
    assert change(steps, {**computing, 0: np.full(80, 0.030)}, np.zeros(80)) is None
