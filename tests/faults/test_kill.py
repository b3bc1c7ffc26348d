"""kill -9 of one of four ranks in the middle of training: everybody is told who died, at once.

In four phases, and under the launcher; long tests make each rank the victim in each of them.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from typing import Any

import pytest
from rank_programs import training
from support.jobs.ranks import Ranks, hvdtune_command, start_ranks, start_under
from support.tiers import long_too

SIZE = 4


def names(text: str, rank: int) -> bool:
    """Whether ``text`` names the rank, as a word of its own."""
    return re.search(rf"\brank {rank}\b", text) is not None


def check_survivors(values: tuple[Any, ...], victim: int) -> None:
    for rank in range(SIZE):
        if rank == victim:
            continue
        assert values[rank] is not None, f"rank {rank} returned nothing"
        assert values[rank]["end"] == "error"
        assert names(values[rank]["message"], victim), values[rank]["message"]
        # Whatever is asked of the engine afterwards fails too, instead of hanging.
        assert names(values[rank]["later"], victim), values[rank]["later"]


def wait_until_training(ranks: Ranks, victim: int) -> None:
    for rank in range(SIZE):
        ranks.wait_for_output(rank, "running")
    # Some way into a step: each run of the test hits another place.
    time.sleep(random.uniform(0.0, 0.1))


@pytest.mark.parametrize("victim", long_too(0, 3, long=range(SIZE)))
@pytest.mark.parametrize("phase", ["small", "large", "waiting", "grouped"])
def test_every_other_rank_raises(
    phase: str, victim: int, record_property: pytest.RecordProperty
) -> None:
    with start_ranks(SIZE, training.train, phase, victim) as ranks:
        wait_until_training(ranks, victim)
        killed = time.monotonic()
        ranks.signal(victim, signal.SIGKILL)
        result = ranks.wait(60, check=False)
    codes = [rank.returncode for rank in result.ranks]
    assert codes == [-signal.SIGKILL if rank == victim else 0 for rank in range(SIZE)], (
        result.describe()
    )
    check_survivors(result.values, victim)
    raised = [value["raised"] for value in result.values if value is not None]
    record_property("seconds until the last rank raised", max(raised) - killed)


@pytest.mark.parametrize("victim", long_too(0, 3, long=range(SIZE)))
def test_launcher_names_the_dead_rank(victim: int) -> None:
    command = hvdtune_command("run", "-np", str(SIZE))
    with start_under(command, training.train_or_fail, "small", victim) as job:
        line = f"[{victim}]<stdout>:running "
        job.wait_for_output(0, line)
        pid = int(job.stdout(0).split(line, 1)[1].split()[0])
        os.kill(pid, signal.SIGKILL)
        result = job.wait(60, check=False)
    launcher = result[0]
    assert launcher.returncode not in (0, -signal.SIGKILL), result.describe()
    # The launcher's own words, not a rank's output.
    own = [line for line in launcher.stderr.splitlines() if not re.match(r"\[\d+\]<", line)]
    assert any(names(line.lower(), victim) for line in own), launcher.stderr
    assert any("SIGKILL" in line or "signal 9" in line for line in own), launcher.stderr


def test_a_forked_child_does_not_hide_the_death() -> None:
    """The child inherits the victim's sockets and memory, and lives on."""
    victim = 1
    with start_ranks(SIZE, training.train_with_worker, "small", victim) as ranks:
        wait_until_training(ranks, victim)
        child = int(ranks.stdout(victim).split("child ", 1)[1].split()[0])
        ranks.signal(victim, signal.SIGKILL)
        result = ranks.wait(60, check=False)
        os.kill(child, signal.SIGKILL)
    check_survivors(result.values, victim)


def test_a_rank_that_exits_without_shutdown(tmp_path: Any) -> None:
    """os._exit(0) in the middle: a death like any other."""
    with start_ranks(SIZE, training.exit_at_step, 20, 2) as ranks:
        result = ranks.wait(60)
    check_survivors(result.values, 2)


def test_two_ranks_die_together() -> None:
    with start_ranks(SIZE, training.train, "small", 1) as ranks:
        wait_until_training(ranks, 1)
        ranks.signal(1, signal.SIGKILL)
        ranks.signal(3, signal.SIGKILL)
        result = ranks.wait(60, check=False)
    for rank in (0, 2):
        message = result.values[rank]["message"]
        assert names(message, 1) or names(message, 3), message
