"""Overlapping process sets used at once, by threads; sets that must not wait for each other."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

from rank_programs import torch_threads
from support.jobs.ranks import run_ranks, start_ranks


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"HOROVOD_CACHE_CAPACITY": "3", "HVDTUNE_SPIN_US": "20"}, marks=pytest.mark.long
        ),
    ],
    ids=["default", "small cache, spinning"],
)
def test_overlapping_sets_at_once(settings: dict[str, str], tmp_path: Path) -> None:
    """From threads; and none waits for a rank that is absent from another set."""
    threads = run_ranks(4, torch_threads.run, str(tmp_path), 40, env=settings).values
    sets = [1 + sum(rank in ranks for ranks in torch_threads.MEMBERS) for rank in range(4)]
    assert list(threads) == [2 * count for count in sets]


def test_sets_do_not_wait_for_a_stopped_member_of_another(tmp_path: Path) -> None:
    with start_ranks(4, torch_threads.stopped_member, str(tmp_path)) as ranks:
        for rank in range(4):
            ranks.wait_for_output(rank, "ready")
        ranks.signal(3, signal.SIGSTOP)
        while psutil.Process(ranks.pid(3)).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        (tmp_path / "stopped").touch()
        for rank in range(3):
            ranks.wait_for_output(rank, "went on", timeout=60)
        ranks.signal(3, signal.SIGCONT)
        (tmp_path / "continued").touch()
        assert ranks.wait().values == ("together again",) * 4
