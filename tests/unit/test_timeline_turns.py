"""Timelines of Horovod's layout: who is late is judged as in a recording, turn by turn."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtune.timeline.horovod import analysis, turns
from hvdtune.timeline.horovod.model import Span, Tick, Trace
from hvdtune.timeline.horovod.summary import summary

RANKS = 4
TURN_US = 50_000


def trace_of(late: np.ndarray, tensors: int = 10, ticks: int | None = None) -> Trace:
    """`late`: [turn, rank] us, how late each rank is with all tensors of a turn. `ticks`: so many
    turns have them, all if None."""
    trace = Trace(source="made up")
    now = 0
    for turn, by in enumerate(np.rint(late).astype(int)):
        for number in range(tensors):
            tensor, ready = f"grad{number}", now + by + 50 * number
            first, last = int(ready.min()), int(ready.max())
            trace.spans.append(Span(tensor, "NEGOTIATE_ALLREDUCE", first, last + 5, 0, {}))
            if ticks is None or turn < ticks:
                order = np.argsort(ready, kind="stable").tolist()
                trace.ticks += [Tick(tensor, rank, int(ready[rank])) for rank in order]
            trace.spans.append(Span(tensor, "ALLREDUCE", last + 10, last + 500, 0, {}))
        now += TURN_US + int(by.max())
    trace.ticks.sort(key=lambda tick: tick.time)
    trace.spans.sort(key=lambda span: (span.begin, -span.end))
    return trace


def verdict(trace: Trace) -> str:
    return next(part for part in summary(trace).split("\n\n") if part.startswith("Verdict"))


def jitter(random: np.random.Generator, turns_: int) -> np.ndarray:
    return random.exponential(5_000, (turns_, RANKS)) + random.pareto(2, (turns_, RANKS)) * 1_000


def test_a_turn_begins_when_a_tensor_comes_again() -> None:
    ops = analysis.operations(trace_of(np.zeros((7, RANKS)), tensors=3))
    assert turns.turns(ops).tolist() == [turn for turn in range(7) for _ in range(3)]
    assert turns.judged(ops) == 7


@pytest.mark.parametrize("tensors", [1, 30])
def test_equal_ranks_are_not_named_though_all_tensors_of_a_turn_wait_for_one(tensors: int) -> None:
    """Of 30 tensors a turn one rank is the last of all: that is one proof, not 30."""
    named = 0
    for seed in range(25):
        late = jitter(np.random.default_rng(seed), 30)
        said = verdict(trace_of(late, tensors))
        named += "held the others up" in said or "holds the others up" in said
        assert "ranks wait for each other" in said or named
    assert named == 0


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_that_is_late_in_most_turns_is_named(rank: int) -> None:
    late = jitter(np.random.default_rng(rank), 60)
    late[:, rank] += 15_000
    said = verdict(trace_of(late))
    assert said.startswith(f"Verdict: rank {rank} holds the others up. It was the last in ")
    assert "the report promises no gain" in said


@pytest.mark.parametrize(("every", "rank"), [(10, 1), (7, 3), (5, 0)])
def test_pauses_that_recur_are_told_with_their_period(every: int, rank: int) -> None:
    late = np.random.default_rng(every).exponential(200, (120, RANKS))
    late[every - 1 :: every, rank] += 80_000
    said = verdict(trace_of(late))
    assert f"rank {rank} holds the others up every {every} occurrences of the tensors" in said
    assert "by 80" in said or "by 79" in said or "by 81" in said


def test_a_while_is_told_as_a_while() -> None:
    late = np.random.default_rng(0).exponential(200, (120, RANKS))
    late[40:60, 2] += 30_000
    said = verdict(trace_of(late))
    assert "rank 2 held the others up for a while" in said
    assert "(occurrences 41 to 60 of the tensors)" in said


@pytest.mark.parametrize("with_ticks", [1, 2])
def test_ticks_of_the_first_steps_prove_nothing(with_ticks: int) -> None:
    late = np.zeros((15, RANKS))
    late[:with_ticks, 3] = 60_000  # below what is a one-time start by its length
    said = verdict(trace_of(late, ticks=with_ticks))
    assert "rank" not in said.replace("ranks", "").replace("about a rank", "")
    assert "a start proves nothing about a rank" in said


def test_the_chance_of_the_table_is_that_of_the_turns() -> None:
    late = jitter(np.random.default_rng(1), 60)
    late[:, 2] += 15_000
    trace = trace_of(late)
    table = analysis.rank_lateness(trace, analysis.operations(trace)).set_index("rank")
    assert table.loc[2, "chance"] < 1e-9
    assert (table.drop(2)["chance"] > 0.1).all()
