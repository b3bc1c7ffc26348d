"""A training job that is not there: step times from a formula with noise, drift and outliers.

`SimulatedEngine` stands in for the engine (see `autotune.session.Engine`), `tune` runs a `Tuner`
against a formula without threads or processes. Both are reproducible.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hvdtune.autotune.search import space
from hvdtune.autotune.search.optimiser import Problem, propose
from hvdtune.autotune.search.question import Answer, Request
from hvdtune.autotune.search.space import Space, Values
from hvdtune.autotune.search.tuner import Outcome, Tuner, TunerConfig
from hvdtune.autotune.statistics import score
from hvdtune.settings import knobs

MIB = 2**20
STEP_BYTES = 10_000_000
KEYS = ("fusion_threshold", "cycle_time", "chunk_size")
Landscape = Callable[[Mapping[str, float]], float]


def flat(values: Mapping[str, float]) -> float:
    return 1.0


def default_is_best(values: Mapping[str, float]) -> float:
    octaves = math.log2(max(values["fusion_threshold"], MIB / 16) / (128 * MIB))
    return 1 + 0.004 * octaves**2 + 0.02 * math.log(values["cycle_time"]) ** 2


def short_cycle_is_best(values: Mapping[str, float]) -> float:
    return 1 + 0.06 * values["cycle_time"]


def own_chunk_is_best(values: Mapping[str, float]) -> float:
    octaves = math.log2((values["chunk_size"] or 256 * 1024) / (1024 * 1024))
    return 1 + 0.02 * octaves**2 + 0.02 * values["cycle_time"]


LANDSCAPES: dict[str, Landscape] = {
    "flat": flat,
    "default is best": default_is_best,
    "short cycle is best": short_cycle_is_best,
    "own chunk is best": own_chunk_is_best,
}


@dataclass(frozen=True)
class SimulatedStep:
    duration_ns: int
    bytes: int = STEP_BYTES
    epoch: int = 0
    tensors: int = 10
    named: bool = True


@dataclass
class SimulatedSteps:
    """Makes steps of a landscape; `noise` is the standard deviation of a step's log time."""

    landscape: Landscape
    seed: int = 0
    noise: float = 0.02
    drift: float = 0.0
    outliers: float = 0.0
    step_ms: float = 50.0
    count: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def step(self, values: Mapping[str, float], epoch: int) -> SimulatedStep:
        self.count += 1
        level = self.landscape(values) * (1 + self.drift * math.sin(self.count / 300))
        if self._rng.random() < self.outliers:
            level *= 4
        time_ms = self.step_ms * level * math.exp(self._rng.gauss(0, self.noise))
        return SimulatedStep(int(time_ms * 1e6), epoch=epoch)


def full_space(fixed: Mapping[str, str] | None = None) -> Space:
    return space.build(knobs.from_environ(fixed or {}), KEYS)


def scattered(searched: Space, count: int, seed: int) -> list[Values]:
    """Settings from all over the space."""
    rng = random.Random(seed)
    return [searched.decode([rng.random() for _ in range(searched.width)]) for _ in range(count)]


def answer(request: Request) -> Answer:
    proposal = propose(Problem.from_json(request.to_json()))
    asked = Space.from_json(request.space)
    return Answer(
        tuple(asked.decode(point) for point in proposal.points),
        proposal.expected_gain,
        proposal.means,
        proposal.deviations,
    )


@dataclass(frozen=True)
class Run:
    """A finished run: how it ended, the tuner, steps used and time against the incumbent's."""

    outcome: Outcome
    tuner: Tuner
    steps: int
    slowdown: float

    def final_over_start(self, landscape: Landscape) -> float:
        return landscape(self.outcome.values) / landscape(self.tuner.incumbent)


def tune(
    steps: SimulatedSteps, config: TunerConfig | None = None, start: Values | None = None
) -> Run:
    searched = full_space()
    defaults = space.shipped_defaults(searched)
    incumbent = start or defaults
    tuner = Tuner(searched, incumbent, defaults, config or TunerConfig(seed=steps.seed))
    in_force, epoch, spent = incumbent, 0, 0.0
    while tuner.trial is not None:
        settle = 0
        if tuner.trial.values != in_force:
            in_force, epoch, settle = tuner.trial.values, epoch + 1, 2
        window = score.Window.of(epoch, 10, settle, STEP_BYTES, tuner.trial.visit)
        hopeless = False
        while not (window.complete or hopeless):
            window.add(steps.step(in_force, epoch))
            spent += steps.landscape(in_force)
            hopeless = tuner.hopeless(window.seen_ns, window.sample() if window.kept else None)
        tuner.report(window.sample(hopeless))
        while (request := tuner.take_request()) is not None:
            tuner.offer(answer(request))
    assert tuner.outcome is not None
    slowdown = spent / (steps.count * steps.landscape(incumbent)) - 1
    return Run(tuner.outcome, tuner, steps.count, slowdown)
