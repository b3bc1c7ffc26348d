"""An engine with nothing to do uses (almost) no CPU: under 1 % of a core for all ranks together.

CPU time is what the kernel charged to the process, not the clock: a busy machine does not matter.
"""

from __future__ import annotations

from rank_programs import idle
from ranks import run_ranks

SECONDS = 10.0
SHARE = 0.01


def test_sleeping_ranks() -> None:
    used = run_ranks(8, idle.sleep_idle, SECONDS).values
    assert sum(used) < SHARE * SECONDS, used


def test_ranks_blocked_on_a_late_one() -> None:
    used = run_ranks(4, idle.wait_for_late_rank, SECONDS).values
    # The allreduce itself and the spinning before the first sleep are in this time too.
    assert max(used) < SHARE * SECONDS + 0.05, used
