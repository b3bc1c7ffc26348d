"""An engine with nothing to do uses (almost) no CPU: under 1 % of a core for all ranks together.

CPU time is what the kernel charged to the process, not the clock: a busy machine does not matter.
"""

from __future__ import annotations

import pytest
from rank_programs import idle
from support.jobs.ranks import start_ranks

SECONDS = 10.0
SHARE = 0.01


@pytest.mark.long
def test_ranks_that_sleep_and_ranks_blocked_on_a_late_one() -> None:
    """Two jobs, at the same time."""
    with (
        start_ranks(8, idle.sleep_idle, SECONDS) as asleep,
        start_ranks(4, idle.wait_for_late_rank, SECONDS) as blocked,
    ):
        used = asleep.wait().values
        used_blocked = blocked.wait().values
    assert sum(used) < SHARE * SECONDS, used
    # The allreduce itself and the spinning before the first sleep are in this time too.
    assert max(used_blocked) < SHARE * SECONDS + 0.05, used_blocked
