"""HOROVOD_CPU_OPERATIONS=GLOO: the engine's tensors through Gloo, where hvdtune has it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from rank_programs import data_planes
from support.hosts.planes import in_shared_memory
from support.jobs.ranks import run_ranks, start_ranks

import hvdtune

CHOSEN = {"HOROVOD_CPU_OPERATIONS": "GLOO"}
needs_gloo = pytest.mark.skipif(
    not hvdtune.gloo_built(), reason="hvdtune was built without Gloo (Debian: libgloo-dev)"
)


@needs_gloo
@pytest.mark.long
@pytest.mark.timeout(300)
def test_results_are_those_of_shared_memory_bit_for_bit() -> None:
    ours = in_shared_memory()
    theirs = run_ranks(3, data_planes.same_as_shared_memory, env=CHOSEN, timeout=240).values
    for rank, seen in enumerate(theirs):
        assert not seen["faults"], "\n".join(seen["faults"][:20])
        assert seen["sets"] == []
        assert seen["enabled"] == (False, True)
        assert seen["threads"] == ("ValueError", "MPI is not enabled: tensors travel through Gloo")
        for key in ("digests", "sums"):
            assert seen[key] == ours[rank][key], key


@needs_gloo
def test_a_rank_that_dies_is_named_to_all_others(tmp_path: Path) -> None:
    with start_ranks(3, data_planes.one_dies, 1, str(tmp_path), env=CHOSEN) as ranks:
        result = ranks.wait(60, check=False)
    assert [rank.returncode for rank in result.ranks] == [0, -signal.SIGKILL, 0], result.describe()
    for rank in (0, 2):
        told = (tmp_path / str(rank)).read_text()
        assert "rank 1 (pid " in told, told
        assert "died" in told


@needs_gloo
def test_an_interface_that_is_not_there() -> None:
    env = {**CHOSEN, "HOROVOD_GLOO_IFACE": "none0"}
    for (kind, text), _ in run_ranks(2, data_planes.fail_to_start, env=env).values:
        assert kind == "ValueError"
        assert "Gloo cannot connect the ranks: " in text
        assert "none0" in text


@pytest.mark.skipif(hvdtune.gloo_built(), reason="hvdtune was built with Gloo")
def test_an_hvdtune_without_gloo_says_how_to_get_it() -> None:
    for (kind, text), _ in run_ranks(2, data_planes.fail_to_start, env=CHOSEN).values:
        assert kind == "ValueError"
        assert "HOROVOD_CPU_OPERATIONS=gloo: this hvdtune was built without Gloo" in text
        assert "libgloo-dev" in text
