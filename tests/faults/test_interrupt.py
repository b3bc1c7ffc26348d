"""Ctrl-C reaches a rank that is blocked in a collective."""

from __future__ import annotations

import signal
from pathlib import Path

from rank_programs import training
from support.jobs.ranks import start_ranks


def test_interrupt_in_a_blocked_collective(tmp_path: Path) -> None:
    stop_file = tmp_path / "stop"
    with start_ranks(3, training.blocked_in_collective, 2, str(stop_file)) as ranks:
        for rank in (0, 1):
            ranks.wait_for_output(rank, "blocked")
        ranks.signal(1, signal.SIGINT)
        ranks.processes[1].wait(60)
        ranks.processes[0].wait(60)
        stop_file.touch()
        result = ranks.wait(60)
    assert result.values[1] == "interrupted"
    # The interrupted rank ended: that ends the job for the rank that was still waiting.
    assert "Horovod has been shut down" in result.values[0]


def test_interrupt_while_waiting_for_the_others_to_start() -> None:
    with start_ranks(2, training.interrupted_in_init, only=[0]) as ranks:
        ranks.wait_for_output(0, "waiting")
        ranks.signal(0, signal.SIGINT)
        result = ranks.wait(60)
    assert result.values[0] == "interrupted"
