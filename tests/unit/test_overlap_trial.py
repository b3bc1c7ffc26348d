"""HVDTUNE_OVERLAP=auto: when overlapping is tried, and when it is kept, on jobs that never ran."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from hvdtune.core import operations, tuning
from hvdtune.torch.optimizer import overlap
from hvdtune.torch.optimizer.overlap_trial import (
    BLOCK,
    FIRST,
    LATER,
    LOOK,
    MOST_PAIRS,
    OverlapTrial,
    Place,
)

MS = 1_000_000
DECIDED = FIRST + LOOK + 2 * BLOCK * MOST_PAIRS + 2  # steps after which everything is decided


def unspoilt() -> bool:
    return False


class Optimizer:
    pass


@dataclass
class Job:
    """A job whose ranks are alike but for what they use of the CPUs, step by step in its clocks.

    `plain` and `overlapping`: durations of steps in ms; `waits`: the part spent in synchronize();
    `noise(rng)`: what a step's duration is multiplied with; `load`: CPUs that each rank uses;
    `drift`: how much longer each step is than the one before.
    """

    plain: float = 20.0
    overlapping: float = 18.0
    waits: float = 3.0
    load: float = 0.3
    cpus: int = 2
    hosts: Sequence[int] = (0, 0, 0, 0)
    noise: Callable[[random.Random], float] = lambda rng: 1.0
    drift: float = 0.0
    spoils: Callable[[int], bool] = lambda step: False
    seed: int = 0
    now: float = 0.0
    cpu: float = 0.0
    exchanges: int = 0
    optimizer: Optimizer = field(default_factory=Optimizer)
    told: list[str] = field(default_factory=list)
    ways: list[bool] = field(default_factory=lambda: [False])

    def run(self, steps: int = DECIDED) -> OverlapTrial:
        """Rank 0's trial after so many steps; the other ranks send what it sends."""
        trial = OverlapTrial(
            Place(0, self.hosts, self.cpus),
            self.exchange,
            self.told.append,
            clock=lambda: int(self.now * MS),
            cpu_clock=lambda: int(self.cpu * MS),
        )
        rng = random.Random(self.seed)
        way = False
        for step in range(2, steps + 1):
            self.ways.append(way)
            duration = self.overlapping if way else self.plain
            duration *= self.noise(rng) * (1 + self.drift) ** step
            self.now += duration - min(self.waits, duration)
            way = trial.begin(self.optimizer, partial(self.spoils, step))
            self.now += min(self.waits, duration)
            self.cpu += self.load * duration
            trial.end(self.optimizer)
        return trial

    def exchange(self, numbers: Sequence[int]) -> Sequence[int]:
        """What all ranks send added up."""
        self.exchanges += 1
        size = len(self.hosts)
        if len(numbers) == 2 * size + 1:
            return [numbers[0]] * size + [numbers[size]] * size + [size * numbers[-1]]
        return [size * number for number in numbers]


def gaussian(share: float) -> Callable[[random.Random], float]:
    return lambda rng: max(0.2, rng.gauss(1, share))


def heavy(rng: random.Random) -> float:
    """Steps that now and then take long."""
    return max(0.2, rng.gauss(1, 0.03)) * (
        1 + (rng.paretovariate(1.5) if rng.random() < 0.1 else 0)
    )


class Bursts:
    """Another program takes the CPUs for some tens of steps, again and again."""

    def __init__(self) -> None:
        self.left, self.slow = 0, False

    def __call__(self, rng: random.Random) -> float:
        if not self.left:
            self.left, self.slow = rng.randint(5, 40), not self.slow
        self.left -= 1
        return rng.gauss(1.3 if self.slow else 1.0, 0.02)


def test_what_helps_is_kept_soon():
    job = Job(noise=gaussian(0.01))
    trial = job.run(FIRST + LOOK + 2 * BLOCK * 4 + 2)
    assert trial.decided
    assert trial.overlaps
    assert job.told[0] == "being tried since step 15: only 60 % of the CPUs are used"
    assert job.told[1] == "tried from step 15 to 46, 10.0 % faster, kept"


@pytest.mark.parametrize(("load", "waits"), [(0.4, 3.0), (0.3, 0.4)])
def test_nothing_is_tried_where_cpus_are_busy_or_steps_wait_for_nothing(load, waits):
    job = Job(load=load, waits=waits, overlapping=1.0)
    trial = job.run(200)
    assert not trial.overlaps
    assert not any(job.ways)
    assert job.exchanges == 2  # when it is 13 and when it is 58 steps old
    assert job.told[0].startswith("not tried at step 14")


def test_a_job_that_begins_to_leave_cpus_idle_is_tried_later():
    job = Job(noise=gaussian(0.01))
    job.load = 0.45
    job.noise = lambda rng: setattr(job, "load", 0.2 if len(job.ways) > 30 else 0.45) or 1.0
    trial = job.run(LATER * (FIRST + LOOK + 1) + LOOK + 2 * BLOCK * MOST_PAIRS)
    assert trial.decided
    assert trial.overlaps
    assert not any(job.ways[: LATER * FIRST])


def test_the_busiest_host_decides():
    """Two ranks on host 0, one on host 1: together 60 % and 30 % of the CPUs."""
    assert Job(load=0.6, hosts=(0, 0, 1)).run().overlaps
    job = Job(load=0.75, hosts=(0, 0, 1))
    job.run()
    assert not any(job.ways)


@pytest.mark.parametrize("noise", [gaussian(0.01), gaussian(0.1), heavy, "bursts"])
def test_what_saves_nothing_is_kept_in_one_of_a_hundred_jobs_at_most(noise):
    jobs = 2000
    kept = sum(
        Job(overlapping=20.0, noise=Bursts() if noise == "bursts" else noise, seed=seed)
        .run()
        .overlaps
        for seed in range(jobs)
    )
    assert kept <= 0.01 * jobs, kept


@pytest.mark.parametrize("noise", [gaussian(0.02), heavy, "bursts"])
def test_what_is_slower_is_not_kept(noise):
    kept = sum(
        Job(overlapping=20.6, noise=Bursts() if noise == "bursts" else noise, seed=seed)
        .run()
        .overlaps
        for seed in range(1000)
    )
    assert kept <= 2


@pytest.mark.parametrize(
    ("noise", "gain", "least"),
    [(gaussian(0.02), 0.09, 0.99), (gaussian(0.05), 0.09, 0.9), (heavy, 0.09, 0.6)],
)
def test_a_gain_is_found_in_noise(noise, gain, least):
    jobs = 200
    kept = sum(
        Job(overlapping=20.0 * (1 - gain), noise=noise, seed=seed).run().overlaps
        for seed in range(jobs)
    )
    assert kept >= least * jobs, kept


def test_a_drift_is_no_gain():
    for drift in (0.005, -0.005):
        kept = sum(
            Job(overlapping=20.0, drift=drift, noise=gaussian(0.01), seed=seed).run().overlaps
            for seed in range(300)
        )
        assert kept <= 3


def test_a_great_loss_ends_the_trial_after_a_pair():
    job = Job(overlapping=45.0)
    trial = job.run()
    assert trial.decided
    assert not trial.overlaps
    assert sum(job.ways) <= BLOCK + 1
    assert job.told[-1].endswith("% slower, left off")


@pytest.mark.parametrize("begins", [1, FIRST + LOOK + 10])
def test_it_does_not_go_with_gradients_that_are_changed(begins):
    job = Job(overlapping=10.0, spoils=lambda step: step >= begins)
    trial = job.run()
    assert trial.decided
    assert not trial.overlaps


def test_other_optimizers_do_as_the_first_and_it_ends_without_that():
    trial = OverlapTrial(Place(0, [0, 0], 2), lambda numbers: numbers, lambda text: None)
    first, second = Optimizer(), Optimizer()
    trial.begin(first, unspoilt)
    trial.overlaps = True
    assert trial.begin(second, unspoilt)
    trial.end(second)
    del first
    for _ in range(300):
        trial.begin(second, unspoilt)
    assert trial.decided
    assert not trial.overlaps


def test_steps_that_fail_end_it():
    job = Job()
    trial = job.run(FIRST + LOOK + BLOCK)
    for _ in range(2 * BLOCK):  # begun and not ended
        trial.begin(job.optimizer, unspoilt)
    assert trial.decided
    assert not trial.overlaps
    assert job.told[-1] == "not tried to the end: steps failed, or changed gradients"


def test_after_a_join_the_autotuner_waits_for_no_trial(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overlap, "_joined", False)
    monkeypatch.setattr(tuning, "_is_held", True)  # as since the trial was agreed on
    operations._last_to_join(operations.Completed(numbers=[0]))
    assert not tuning.is_held()
