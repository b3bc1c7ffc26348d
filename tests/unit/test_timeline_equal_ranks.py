"""Recordings of equal ranks, whatever their jitter: no rank and no group is named."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

# Processes of the pool find it by this name; by tests.unit.… they do so only beside it.
from equal_ranks import named
from support.tiers import EVERY

RECORDINGS = 1000 if EVERY else 160
#: Of them at most this share names somebody; of the first FEW none does.
MOST, FEW = 0.01, 8


def test_of_equal_ranks_none_is_named():
    said = [one for seed in range(FEW) for one in named(seed)]
    assert not said, "\n".join(said)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_of_many_recordings_of_equal_ranks_hardly_one_names_a_rank():
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=processes) as pool:
        said = [one for one in pool.map(named, range(FEW, RECORDINGS), chunksize=19) if one]
    assert len(said) <= MOST * RECORDINGS, "\n".join(one[0] for one in said)
