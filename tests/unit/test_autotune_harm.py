"""What slow candidates cost: every step that they cause, and no other."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.models.simulated_training import SimulatedStep
from test_autotune_session import SimulatedEngine, session

from hvdtune.autotune.statistics.harm import Harm
from hvdtune.autotune.statistics.inference import Estimate
from hvdtune.autotune.statistics.score import Sample, Window

USUAL = Estimate(math.log(10.0), 0.01)
MS = 1_000_000


def sample(ms: float, settled_ms: float = 10.0, late_ms: float = 10.0) -> Sample:
    return Sample(
        10, ms, 0.1, 1e6, 100.0, settled=2, settled_ms=settled_ms, late=1, late_ms=late_ms
    )


@pytest.mark.parametrize(
    ("of_candidate", "behind_candidate", "taken", "cost"),
    [
        (True, False, sample(15.0, settled_ms=20.0, late_ms=30.0), 5.0 + 2.0),
        (True, True, sample(15.0, settled_ms=20.0, late_ms=30.0), 5.0 + 2.0 + 2.0),
        # The incumbent's own steps cost nothing, but those between a candidate and it do.
        (False, True, sample(15.0, settled_ms=20.0, late_ms=30.0), 2.0 + 2.0),
        (False, False, sample(15.0, settled_ms=20.0, late_ms=30.0), 0.0),
        # A fast candidate does not pay for slow ones.
        (True, True, sample(5.0, settled_ms=5.0, late_ms=5.0), 0.0),
    ],
)
def test_what_counts(
    of_candidate: bool, behind_candidate: bool, taken: Sample, cost: float
) -> None:
    harm = Harm(100.0)
    harm.take(taken, USUAL, of_candidate, behind_candidate)
    assert harm.steps == pytest.approx(cost)


def test_the_search_ends_before_the_limit() -> None:
    harm = Harm(10.0)
    harm.take(sample(19.5), USUAL, of_candidate=True, behind_candidate=False)
    assert harm.steps == pytest.approx(9.5)
    assert harm.ends_search
    assert not harm.is_used_up
    assert harm.is_hopeless([15 * MS] * 3, None, USUAL, compared=True)
    assert harm.at_limit


def test_one_that_is_compared_is_only_given_up_at_the_limit() -> None:
    harm = Harm(100.0)
    slow = [15 * MS] * 4
    assert harm.is_hopeless(slow, None, USUAL, compared=False)
    assert not harm.at_limit
    assert not harm.is_hopeless(slow, None, USUAL, compared=True)


def test_steps_that_still_run_with_the_settings_before_are_late() -> None:
    window = Window(epoch=3, steps=2, settle=1, min_ns=0)
    for ms, epoch in ((40, 2), (30, 2), (20, 3), (10, 3), (10, 3)):
        window.add(SimulatedStep(ms * MS, epoch=epoch))
    found = window.sample()
    assert (found.steps, found.step_time_ms) == (2, pytest.approx(10.0))
    assert (found.settled, found.settled_ms) == (1, 20.0)
    # The longer one may be a checkpoint.
    assert (found.late, found.late_ms) == (2, 30.0)


def slow_but_for_the_defaults(values: Mapping[str, float]) -> float:
    return 1.0 if values["cycle_time"] == 1.0 else 1.2


def test_all_steps_that_candidates_cause_are_counted(tmp_path: Path) -> None:
    """The engine's changes show a step late, so a step of a candidate comes behind its sample."""

    class Counting(SimulatedEngine):
        lost = 0.0

        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            self.lost += slow_but_for_the_defaults(self._pending[1]) - 1
            return super().read_steps(timeout_s)

    engine = Counting(slow_but_for_the_defaults)
    engine._steps.noise = 0.002
    tuning = session(engine, tmp_path / "log.csv")
    tuning.run()
    assert engine.lost > 5
    assert tuning.harm_steps == pytest.approx(engine.lost, rel=0.1)
