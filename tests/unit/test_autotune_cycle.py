"""Parts of steps, as the engine sees them, put together to training steps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from support.models.simulated_training import SimulatedStep

from hvdtune.autotune.statistics.cycle import EQUAL, LEAST, Joiner, Step

MS = 1_000_000
GRADIENTS = 1_000_000


def parts(
    sizes: Iterable[int], times_ms: Iterable[float] | None = None, named: bool = True
) -> list[SimulatedStep]:
    sizes = list(sizes)
    times = list(times_ms) if times_ms is not None else [10.0] * len(sizes)
    return [
        SimulatedStep(int(time * MS), size, tensors=1, named=named)
        for size, time in zip(sizes, times, strict=True)
    ]


def joined(joiner: Joiner, given: Sequence[SimulatedStep]) -> list[Step]:
    return [step for part in given for step in joiner.add(part)]


def sizes_of(steps: Sequence[Step]) -> set[int]:
    return {step.bytes for step in steps}


def test_ordinary_steps_pass_as_they_are() -> None:
    joiner = Joiner()
    given = parts([GRADIENTS] * 40)
    assert joined(joiner, given[: LEAST - 1]) == []
    assert joined(joiner, given[LEAST - 1 :]) == given
    assert joiner.parts == 1


def test_a_metric_now_and_then_is_no_other_work() -> None:
    joiner = Joiner()
    given = parts([GRADIENTS, GRADIENTS, GRADIENTS + 4] * 20)
    assert joined(joiner, given) == given


def test_an_evaluation_is_passed_on_for_the_sample_to_judge() -> None:
    joiner = Joiner()
    given = parts(([GRADIENTS] * 20 + [8] * 30) * 3)
    assert joined(joiner, given) == given


def test_optimizers_that_take_turns_are_one_step() -> None:
    """Five steps of the critic, then one of both (the names of the sixth are new)."""
    joiner = Joiner()
    turn = [1000, 1000, 1000, 1000, 1000, 6000]
    steps = joined(joiner, parts(turn * 10, [5, 5, 5, 5, 5, 30] * 10))
    assert joiner.parts == 6
    assert len(steps) >= 8
    assert sizes_of(steps) == {11_000}
    assert {step.duration_ns for step in steps} == {55 * MS}


def test_after_an_evaluation_the_turns_are_found_again() -> None:
    joiner = Joiner()
    turn = [1000, 1000, 6000]
    joined(joiner, parts(turn * 6))
    steps = joined(joiner, parts([1000, 8, 8, 8, *turn, *turn]))
    assert sizes_of(steps) == {8000}
    assert len(steps) >= 1


def test_turns_without_order_are_steps_each() -> None:
    joiner = Joiner()
    rng = random.Random(1)
    given = parts(rng.choice([1000, 3000, 9000]) for _ in range(200))
    steps = joined(joiner, given)
    assert joiner.parts == 1
    assert steps == given


def layers(count: int, head: int) -> list[int]:
    """What an unnamed network of equal layers looks like: weights and biases, and another head."""
    return [size for _ in range(count) for size in (65_536, 512)] + [head, 40]


@pytest.mark.parametrize("network", [layers(3, 5120), layers(30, 5120), [64, 64, 256, 64, 1024]])
def test_unnamed_tensors_are_one_step(network: list[int]) -> None:
    joiner = Joiner()
    times = [40.0] + [0.1] * (len(network) - 1)
    steps = joined(joiner, parts(network * 30, times * 30, named=False))
    assert joiner.parts == len(network)
    whole = [step for step in steps if step.bytes == sum(network)]
    assert len(whole) >= 10
    assert {step.tensors for step in whole} == {len(network)}
    # Whoever reads later gets nothing but whole steps.
    later = joined(joiner, parts(network * 5, times * 5, named=False))
    assert sizes_of(later) == {sum(network)}


def test_unnamed_tensors_that_are_all_equal_are_told_by_their_times() -> None:
    joiner = Joiner()
    rng = random.Random(2)
    times = [rng.gauss(30, 1) if at % 7 == 0 else rng.random() ** 4 for at in range(7 * 30)]
    times[40] = 9.0  # a rank was held up
    steps = joined(joiner, parts([4000] * len(times), times, named=False))
    assert joiner.parts == 7
    assert sizes_of(steps) == {28_000}


def test_a_hold_up_that_several_parts_felt_is_no_rhythm() -> None:
    joiner = Joiner()
    times = [20.0 if at % 12 == 10 else 0.01 for at in range(12 * 10)]
    times[11:14] = [0.25, 0.15, 0.22]
    steps = joined(joiner, parts([4000] * len(times), times, named=False))
    assert joiner.parts == 12
    assert sizes_of(steps) == {48_000}


def test_one_unnamed_tensor_a_step() -> None:
    joiner = Joiner()
    given = parts([4000] * 100, named=False)
    assert joined(joiner, given) == given
    # A checkpoint among the first ones is no rhythm.
    times = [10.0] * 300
    times[5] = 500.0
    assert len(joined(Joiner(), parts([4000] * 300, times, named=False))) == 300


def test_a_training_that_becomes_another_one_is_learned_anew() -> None:
    joiner = Joiner()
    joined(joiner, parts([1000, 1000, 6000] * 10))
    steps = joined(joiner, parts([2000, 9000] * 60))
    assert joiner.parts == 2
    assert sizes_of(steps) == {11_000}


def test_what_was_held_back_comes_in_the_end() -> None:
    joiner = Joiner()
    given = parts([1000] * (LEAST - 1))
    assert joined(joiner, given) == []
    assert joiner.flush() == given
    assert joiner.flush() == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0, -1])
def test_times_that_are_no_times_do_not_disturb(bad: float) -> None:
    given = [SimulatedStep(bad, 4000, named=False)] * (EQUAL + 1)  # type: ignore[arg-type]
    assert len(joined(Joiner(), given)) == EQUAL + 1


def test_a_step_belongs_to_the_settings_all_its_parts_ran_under() -> None:
    joiner = Joiner()
    joined(joiner, parts([1000, 6000] * 10))
    before, after = SimulatedStep(MS, 1000, 3), SimulatedStep(MS, 6000, 4)
    [whole] = joined(joiner, [before, after])
    assert whole.epoch == 3


def test_unnamed_parts_without_order_are_steps_each() -> None:
    rng = random.Random(1)
    sizes = [rng.choice(range(1000, 21_000, 1000)) for _ in range(200)]
    given = parts(sizes, [500.0] * 200, named=False)  # 20 s are soon over
    assert joined(Joiner(), given) == given


def test_a_pause_at_the_start_does_not_make_every_part_a_step() -> None:
    joiner = Joiner()
    network = layers(30, 5120)
    times = [5.0] * (30 * len(network))
    times[len(network) - 1] = 25_000.0  # it is too early for a pattern to show
    steps = joined(joiner, parts(network * 30, times, named=False))
    assert joiner.parts == len(network)
    assert sum(step.bytes == sum(network) for step in steps) >= 10
