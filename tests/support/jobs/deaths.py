"""A rank of a training job that is killed, and what the others are told."""

from __future__ import annotations

import signal
from typing import Any

from rank_programs import training

from support.jobs.ranks import start_ranks


def answers_of_survivors(ranks: int, phase: str, victim: int, **job: Any) -> list[dict[str, Any]]:
    """Kill a rank in a phase of `training.train`; what the others return, all with an error.

    `job`: further arguments of `start_ranks`.
    """
    with start_ranks(ranks, training.train, phase, victim, **job) as running:
        for rank in range(ranks):
            running.wait_for_output(rank, "running")
        running.signal(victim, signal.SIGKILL)
        result = running.wait(60, check=False)
    answers = [value for rank, value in enumerate(result.values) if rank != victim]
    assert all(answer is not None and answer["end"] == "error" for answer in answers), (
        result.describe()
    )
    return answers
