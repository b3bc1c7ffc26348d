"""Who is named: never one of equal ranks by chance, always one that really costs the job time."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from support.recordings.synthetic_capture import Job, Late, recording, step_seconds

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis import chance, skew
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import Finding

#: What a step costs beside the jitter, seconds.
STEP = 0.050


def jitter(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """[ranks, S] s that the ranks compute longer in a step; all ranks alike."""
    if kind == "normal":
        return np.abs(random.normal(0, 0.003, shape))
    if kind == "uniform":
        return random.uniform(0, 0.040, shape)
    if kind == "exponential":
        return random.exponential(0.010, shape)
    if kind == "lognormal":
        return 0.002 * random.lognormal(0, 1.5, shape)
    if kind == "rare pauses":
        return np.where(random.random(shape) < 0.1, random.exponential(0.2, shape), 0.001)
    return np.minimum(0.001 * random.pareto(1.2, shape), 1.0)


KINDS = ("normal", "uniform", "exponential", "lognormal", "rare pauses", "pareto")


def lateness(work: np.ndarray) -> pd.DataFrame:
    """What skew.lateness() gives for steps that end when the last rank has computed `work`."""
    late = work - work.min(axis=0)
    ordered = np.sort(work, axis=0)
    delays = np.where(work == ordered[-1], ordered[-1] - ordered[0], 0.0)
    last = skew.last_in(delays, skew.MATTERS * STEP)
    ranks, steps = work.shape
    return pd.DataFrame(
        {
            "rank": np.repeat(np.arange(ranks), steps),
            "step": np.tile(np.arange(1, steps + 1), ranks),
            "lateness_s": late.ravel(),
            "caused_s": delays.ravel(),
            "delay_s": delays.ravel(),
            "last": last.ravel(),
        }
    )


def named(work: np.ndarray) -> list[object]:
    """Kinds of ranks and groups that are blamed for `work`, [ranks, S] s."""
    table = lateness(work)
    joint = SimpleNamespace(recording=SimpleNamespace(size=len(work)), views={})
    kinds = skew.stragglers(joint, None, table)["kind"]  # type: ignore[arg-type]
    case = Case(SimpleNamespace(lateness=table), None, 0, 0)  # type: ignore[arg-type]
    case.__dict__["durations"] = STEP + work.max(axis=0)
    return [*kinds[kinds != ""], *case.slow_group]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_ranks_are_hardly_ever_named(kind):
    random = np.random.default_rng(KINDS.index(kind))
    wrong = 0
    for _ in range(180):
        ranks, steps = int(random.choice([2, 3, 4, 8])), int(random.choice([40, 60, 150, 400]))
        wrong += bool(named(jitter(random, kind, (ranks, steps))))
    assert wrong <= 1  # of 180: 1080 recordings in all


@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_that_computes_longer_is_named_whatever_the_jitter(kind, ranks):
    random = np.random.default_rng(ranks)
    work = jitter(random, kind, (ranks, 120))
    work[ranks - 1] += 0.040
    assert named(work) == ["persistent"]


@pytest.mark.parametrize("every", [3, 10, 20])
def test_pauses_of_one_rank_are_named(every):
    random = np.random.default_rng(every)
    work = jitter(random, "normal", (4, 200))
    work[1, every - 1 :: every] += 0.250
    assert named(work) == ["recurring"]


def wander(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Little work that is alike in neighbouring steps, [ranks, S] s."""
    work = np.abs(random.normal(0, 0.0005, shape))
    for step in range(1, shape[1]):
        work[:, step] = 0.8 * work[:, step - 1] + 0.2 * work[:, step]
    return work


@pytest.mark.parametrize("seed", range(4))
def test_pauses_at_random_are_named_though_all_else_is_alike_in_neighbouring_steps(seed):
    random = np.random.default_rng(seed)
    work = wander(random, (4, 100))
    assert chance.neighbours(lateness(work)["lateness_s"].to_numpy().reshape(4, 100)) > 2
    work[2, random.choice(100, 9, replace=False)] += 0.120
    assert named(work) == ["recurring"]


def test_pauses_of_equal_ranks_that_come_together_name_hardly_anybody():
    random = np.random.default_rng(5)
    wrong = 0
    for _ in range(100):
        work = wander(random, (4, 100))
        for first in random.choice(95, 2, replace=False):  # two bursts of one rank each
            work[random.integers(4), first : first + 5] += 0.120
        wrong += bool(named(work))
    assert wrong <= 8, "two bursts of one rank prove nothing"


def test_two_ranks_that_are_late_together_are_a_group_and_three_of_four_by_chance_are_not():
    random = np.random.default_rng(7)
    work = jitter(random, "normal", (4, 80))
    work[1] += 0.03
    work[3] += 0.03
    assert {1, 3} <= set(named(work))
    turns = np.zeros((4, 80))
    turns[np.arange(80) % 4, np.arange(80)] = 0.03
    assert named(turns) == []


@pytest.mark.parametrize(
    ("at", "period"),
    [
        (range(9, 100, 10), 10),
        ([9, 19, 40, 50, 60, 70, 80, 89], 10),  # one is missing, two come a step off
        ([1, 3, 5, 7, 9, 11], 2),
        ([3, 8, 21, 22, 60, 71, 95], 0),
        ([10, 20, 30], 0),  # too few
        (range(10, 30), 0),  # every step is no period
    ],
)
def test_the_period_of_pauses(at, period):
    assert chance.period(np.array(list(at))) == period


def test_chernoffs_bound_is_one_and_not_too_wide():
    random = np.random.default_rng(1)
    costs = random.exponential(1.0, 60)
    delays = np.zeros((4, 60))
    delays[2, :28] = costs[:28]
    delays[0, 28:] = costs[28:]
    bound = chance.caused_by_chance(delays, 4)
    drawn = random.integers(0, 4, (20_000, 60))
    seen = ((drawn == 2) * costs).sum(axis=1) >= delays[2].sum()
    assert 4 * seen.mean() <= bound[2] <= 100 * max(seen.mean(), 1e-5)
    assert bound[1] == 1


def test_one_long_delay_proves_nothing_and_ten_do():
    one = np.zeros((4, 100))
    one[1, 50] = 5.0
    assert chance.caused_by_chance(one, 4)[1] > 0.5
    ten = np.zeros((4, 100))
    ten[1, ::10] = 0.25
    assert chance.caused_by_chance(ten, 4)[1] == pytest.approx(4 * 4**-10, rel=0.5)


@cache
def verdict(job: Job) -> list[Finding]:
    return findings(analyse(recording(job)))


def test_a_rank_that_pauses_every_tenth_step_is_blamed_with_its_period_and_cost():
    late = tuple(Late(1, 0.25, step, step) for step in range(10, 101, 10))
    job = Job(steps=100, noise=0.02, late=late)
    found = verdict(job)[0]
    assert found.kind == "recurring straggler"
    assert "Rank 1 (host host0, pid 1001) holds the others up in every 10th step" in found.sentence
    good = Job(steps=100, noise=0.02)
    true = 1 - step_seconds(good) / step_seconds(job)
    assert found.gain == pytest.approx(true, rel=0.2)


def test_pauses_at_random_are_told_by_their_number():
    at = np.random.default_rng(3).choice(np.arange(3, 100), 14, replace=False)
    job = Job(steps=100, noise=0.02, late=tuple(Late(2, 0.2, int(s), int(s)) for s in at))
    found = verdict(job)[0]
    assert found.kind == "recurring straggler"
    assert "in 14 of " in found.sentence
    assert found.evidence["period_steps"] == 0


def test_ranks_that_pause_in_turn_are_nobodys_fault():
    late = tuple(Late(step % 4, 0.030, step, step) for step in range(1, 81))
    found = verdict(Job(steps=80, noise=0.02, late=late))
    assert found[0].kind == "ranks take turns"
    assert not {"persistent straggler", "recurring straggler"} & {one.kind for one in found}
