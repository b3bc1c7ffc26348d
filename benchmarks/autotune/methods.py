"""The compared ways to tune. Each gets a job and a start and returns the settings to keep.

  hvdtune       the tuner of this package with its default settings, step by step as in a session
  random        the start, then random settings; the one with the best sample is kept
  skopt         the start, then skopt.Optimizer's proposals (expected improvement at
                sampled points, otherwise its defaults); the best sample is kept
  Horovod       its published procedure (`horovod_procedure`)

random and skopt get as many steps as hvdtune may take: SAMPLES samples of STEPS steps, over the
same space. Horovod's procedure has its own budget and its own space.
"""

from __future__ import annotations

import random
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import horovod_procedure
from job import Job

from hvdtune.autotune.search import space
from hvdtune.autotune.search.optimiser import Problem, propose
from hvdtune.autotune.search.question import Answer
from hvdtune.autotune.search.space import Space, Values
from hvdtune.autotune.search.tuner import Tuner, TunerConfig
from hvdtune.autotune.statistics import score
from hvdtune.settings import knobs

SAMPLES = 28
STEPS = 50
KEYS = ("fusion_threshold", "cycle_time", "chunk_size", "one_shot_limit")
SETTLE_STEPS = 2


@dataclass(frozen=True)
class Result:
    """The settings that a method kept, whether it says why, and after how many samples."""

    values: Mapping[str, float]
    verdict: str = ""
    samples: int = 0


def full_space() -> Space:
    """All settings the engine can change while it runs, none of them fixed."""
    return space.build(knobs.from_environ({}), KEYS)


def hvdtune(job: Job, start: Values, seed: int, config: TunerConfig | None = None) -> Result:
    """This package's tuner; `start` holds every setting of `KEYS`."""
    searched = full_space()
    defaults = space.shipped_defaults(searched)
    tuner = Tuner(searched, start, defaults, config or TunerConfig(seed=seed))
    in_force, epoch, typical_bytes = {**start}, 0, 0.0
    while tuner.trial is not None:
        wanted = {**in_force, **tuner.trial.values}
        settle = 0
        if wanted != in_force:
            in_force, epoch, settle = wanted, epoch + 1, SETTLE_STEPS
        window = score.Window.of(epoch, 10, settle, typical_bytes, tuner.trial.visit)
        hopeless = False
        while not (window.complete or hopeless):
            window.add(job.step(in_force, epoch))
            if tuner.trial.candidate:
                so_far = window.sample() if window.kept else None
                hopeless = tuner.hopeless(window.seen_ns, so_far)
        sample = window.sample(hopeless)
        typical_bytes = sample.bytes_per_step
        tuner.report(sample)
        while (request := tuner.take_request()) is not None:
            # The answer arrives at once: the optimiser's own time is not compared here.
            proposal = propose(Problem.from_json(request.to_json()))
            asked = Space.from_json(request.space)
            values = [asked.decode(point) for point in proposal.points]
            tuner.offer(Answer(values, proposal.expected_gain, proposal.means, proposal.deviations))
    assert tuner.outcome is not None
    values = {**start, **tuner.outcome.values}
    return Result(values, tuner.outcome.verdict, len(tuner.history))


def random_search(job: Job, start: Values, seed: int) -> Result:
    """The best of the start and random settings."""
    searched = full_space()
    rng = random.Random(seed)
    others = [
        searched.decode([rng.random() for _ in range(searched.width)]) for _ in range(SAMPLES - 1)
    ]
    return Result(min([start, *others], key=lambda values: _sample(job, values)))


def scikit_optimize(job: Job, start: Values, seed: int) -> Result:
    """The best of the start and scikit-optimize's proposals."""
    from skopt import Optimizer

    searched = full_space()
    optimizer = Optimizer(
        [(0.0, 1.0)] * searched.width, acq_func="EI", acq_optimizer="sampling", random_state=seed
    )
    best = (_sample(job, start), start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Its own box: a start outside the box is moved onto the box's surface.
        optimizer.tell([min(1.0, max(0.0, at)) for at in searched.encode(start)], best[0])
        for _ in range(SAMPLES - 1):
            point = optimizer.ask()
            values = searched.decode(point)
            time_ms = _sample(job, values)
            best = min(best, (time_ms, values), key=lambda one: one[0])
            optimizer.tell(point, time_ms)
    return Result(best[1])


def horovod(job: Job, start: Values, seed: int) -> Result:
    """Horovod's procedure over its own settings; the others stay as they are."""

    def scores(values: Mapping[str, float], count: int) -> float:
        # Five scores of equal length make a sample; its value is their median (bytes over time).
        return statistics.median(
            1 / sum(job.step({**start, **values}).duration_ns for _ in range(count // 5))
            for _ in range(5)
        )

    return Result({**start, **horovod_procedure.tune(scores, seed)})


def _sample(job: Job, values: Mapping[str, float]) -> float:
    for _ in range(SETTLE_STEPS):
        job.step(values)
    times = [job.step(values).duration_ns / 1e6 for _ in range(STEPS - SETTLE_STEPS)]
    return score.trimmed_mean(times)[0]


METHODS: dict[str, Callable[[Job, Values, int], Result]] = {
    "hvdtune": hvdtune,
    "random": random_search,
    "scikit-optimize": scikit_optimize,
    "Horovod": horovod,
}
