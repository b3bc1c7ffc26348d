"""A rank of a training job that is killed, and what the others are told."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
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


def told_of_a_death(program: Callable[..., Any], *args: Any) -> tuple[str, str]:
    """Kill rank 1 of 2, for which `program` waits once it has printed "started".

    What the program returns on rank 0: an error's class and text.
    """
    with start_ranks(2, program, *args) as ranks:
        for rank in range(2):
            ranks.wait_for_output(rank, "started")
        time.sleep(0.2)
        ranks.signal(1, signal.SIGKILL)
        result = ranks.wait(timeout=60, check=False)
    kind, text = result.values[0]
    assert "rank 1" in text, text
    return kind, text
