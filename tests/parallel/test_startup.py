"""Starting and ending a job again and again: nothing is left, and early ranks do not poll."""

from __future__ import annotations

import os
import socket

import pytest
from rank_programs import startup, training
from support.jobs.ranks import run_ranks, start_ranks


@pytest.mark.long
def test_five_hundred_lives_leave_nothing() -> None:
    for held in run_ranks(4, startup.hold, 500, timeout=240, fresh=True).values:
        assert held["files"] == 0
        assert held["threads"] == 0
        # The allocator may come and go; a leak in every round would be hundreds of mappings, or
        # the pages of hundreds of arenas.
        assert held["mappings"] < 20
        assert held["resident"] < 16_000


@pytest.mark.parametrize("late", [0, 2])
def test_early_ranks_sleep_until_the_last_has_come(late: int) -> None:
    values = run_ranks(4, startup.wait_for_rank, late, 1.5).values
    # They wake five times a second to look for Ctrl-C; looking for rank 0 every few milliseconds
    # would be hundreds of times.
    assert max(values) < 60, values


def test_a_rank_that_rank_zero_hangs_up_on_tries_again() -> None:
    """Rank 0 does so where the hello does not come in time (the process was suspended, say)."""
    place = {"HVDTUNE_JOB_ID": os.urandom(8).hex(), "HOROVOD_START_TIMEOUT": "60"}
    name = f"\0hvdtune/{os.getuid()}/{place['HVDTUNE_JOB_ID']}/1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank_zero:
        rank_zero.bind(name)
        rank_zero.listen()
        rank_zero.settimeout(30)
        with start_ranks(2, training.start, env=place, only=[1]) as ranks:
            hellos = []
            for _ in range(2):
                rank, _ = rank_zero.accept()
                hellos.append(rank.recv(1 << 16))
                rank.close()
            result = ranks.wait(60)
    assert hellos[0] == hellos[1] != b""
    assert "rank 0 ended before all processes of the job had come" in result.values[1]
