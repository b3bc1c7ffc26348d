"""DistributedOptimizer(gradient_as_buffer_view=True): the same results, without copies."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from rank_programs import torch_gradient_views as programs
from support.jobs.ranks import run_checks_on, start_ranks

ENVIRONMENT = {"HOROVOD_TIMELINE": "DYNAMIC", "HVDTUNE_TIMELINE_FORMAT": "horovod"}


@pytest.mark.parametrize(
    ("np", "program"),
    [
        (1, programs.alone),
        pytest.param(2, programs.several, marks=pytest.mark.long),
        (4, programs.several),
    ],
)
def test_gradient_views(np: int, program: Callable[[], list[str]]) -> None:
    run_checks_on(np, program, env=ENVIRONMENT, timeout=240)


def test_a_rank_that_dies_in_the_middle_ends_the_job() -> None:
    with start_ranks(3, programs.until_killed) as ranks:
        for rank in range(3):
            ranks.wait_for_output(rank, "running")
        time.sleep(random.uniform(0.0, 0.1))  # each run hits another place
        ranks.signal(1, signal.SIGKILL)
        result = ranks.wait(60, check=False)
    assert [rank.returncode for rank in result.ranks] == [0, -signal.SIGKILL, 0], result.describe()
    for rank in (0, 2):
        assert "rank 1 " in result.values[rank], result.values
