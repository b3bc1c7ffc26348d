"""What takes seconds once (a compilation, the first batch) enters no score of the tuner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from support.models.simulated_training import MIB, SimulatedStep, SimulatedSteps, flat, tune

from hvdtune.autotune.search.tuner import TunerConfig
from hvdtune.autotune.statistics import score

PAUSE_NS = 5_000_000_000
CONFIG = TunerConfig(max_samples=4, warmup_samples=1)


@dataclass
class WithPauses(SimulatedSteps):
    """Steps some of which take seconds longer."""

    pauses: frozenset[int] = field(default_factory=frozenset)

    def step(self, values: object, epoch: int) -> SimulatedStep:
        made = super().step(values, epoch)  # type: ignore[arg-type]
        if self.count in self.pauses:
            made = replace(made, duration_ns=made.duration_ns + PAUSE_NS)
        return made


@pytest.mark.parametrize("pauses", [{1}, {1, 20}, *({at} for at in range(21, 60, 3))])
def test_a_pause_enters_no_score(pauses: set[int]) -> None:
    run = tune(WithPauses(flat, pauses=frozenset(pauses)), CONFIG)
    assert run.steps > max(pauses)
    for one in run.tuner.history:
        assert one.sample.step_time_ms == pytest.approx(50, rel=0.1)
        assert not one.sample.abandoned


def test_settings_that_are_slow_in_every_step_are_still_given_up() -> None:
    start = {"fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0}
    steps = SimulatedSteps(lambda values: 1.0 if values == start else 100.0)
    run = tune(steps, CONFIG, start)  # type: ignore[arg-type]
    assert any(one.sample.abandoned for one in run.tuner.history)
    assert not run.outcome.adopted


@pytest.mark.parametrize("at", range(3))
def test_of_three_steps_too(at: int) -> None:
    durations = [50e6, 51e6, 52e6]
    durations[at] += PAUSE_NS
    found = score.summarise(durations, [100.0] * 3)
    assert found.step_time_ms < 53
    assert found.outliers == 1


def test_three_steps_that_scatter_are_all_kept() -> None:
    assert score.summarise([50e6, 100e6, 200e6], [100.0] * 3).outliers == 0
