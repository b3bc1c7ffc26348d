"""Forks of a rank: they read its place in the job, and are told where all else may be called."""

import pytest
from rank_programs import forks
from support.jobs.ranks import run_ranks

SENTENCE = (
    "This process (pid CHILD) is a fork of rank {rank} (pid PARENT), such as a DataLoader's "
    "worker: rank(), size() and the like answer here, but collectives, and all else that concerns "
    "the other ranks, must be called in the rank's own process."
)


def test_forks_answer_as_their_rank() -> None:
    for rank, answers in enumerate(run_ranks(2, forks.plain_reads).values):
        assert len(answers) == 6
        assert set(answers) == {answers[0]}
        assert answers[0].startswith(f"[{rank}, 2, {rank}, 2, 0, 1, True, True, False, False")


def test_what_concerns_the_other_ranks_is_refused() -> None:
    for rank, answers in enumerate(run_ranks(2, forks.refusals).values):
        told = "ValueError: " + SENTENCE.format(rank=rank)
        init = answers.pop("init")
        assert set(answers.values()) == {told}
        assert init == told.replace("ValueError: ", "ValueError: init(): ")


def test_a_forks_shutdown_ends_nothing() -> None:
    forgotten = "ValueError: Horovod has not been initialized; use hvd.init()."
    assert run_ranks(2, forks.shutdown_in_fork).values == (["(None, False)", forgotten],) * 2


@pytest.mark.parametrize("rounds", [12])
def test_forks_while_a_thread_drives_the_engine(rounds: int) -> None:
    values = run_ranks(2, forks.forks_during_operations, rounds).values
    assert values == (["(0, 2)"] * rounds, ["(1, 2)"] * rounds)
