"""HVDTUNE_OVERLAP: whether gradients are reduced during the backward pass."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_overlap
from support.jobs.ranks import run_ranks
from support.tiers import EVERY

from hvdtune.core.libraries.machine import usable_cpus


def test_when_gradients_are_reduced() -> None:
    expected = {
        "on, busy": True,
        "off, idle": False,
        "auto, a CPU left": True,
        "auto, none left": False,
        "auto, more threads": False,
        "not set, a CPU left": True,
        "not set, none left": False,
        "on one rank only": False,  # all ranks do the same
        "one rank has more threads": False,
    }
    together = min(2, usable_cpus())  # not only the one that each rank is pinned to
    for found, refusal, cpus in run_ranks(2, torch_overlap.everything).values:
        assert found == expected
        assert refusal.startswith("HVDTUNE_OVERLAP is 'sometimes'"), refusal
        assert "one of auto, on, off" in refusal, refusal
        assert cpus == (together, 1)


def test_auto_finds_out_by_trying_and_changes_no_bit() -> None:
    """3 ranks: sums in another order would differ in the last bits."""
    found = run_ranks(3, torch_overlap.trials).values
    ways = {name: way for name, (way, _) in found[0].items()}
    for others in found[1:]:
        for name in set(ways) - {"auto, a rank joins early", "auto, a rank joins late"}:
            assert others[name][0] == ways[name], name  # at the same steps
    assert ways["on"][1:] == [True] * 59
    assert ways["off"] == [False] * 60
    saves = ways["auto, it saves time"]
    assert not any(saves[:14])
    assert saves[14:46].count(True) == 16
    assert saves[46:] == [True] * 14
    assert ways["auto, it costs time"][:30].count(True) in range(1, 16)
    assert not any(ways["auto, it costs time"][47:])
    assert not any(ways["auto, no CPU is idle"])
    assert not any(ways["auto, gradients are changed"])
    for one in found:
        parameters = {name: values for name, (_, values) in one.items()}
        for name in ("off", "auto, it saves time", "auto, it costs time", "auto, no CPU is idle"):
            assert parameters[name] == parameters["on"] == found[0]["on"][1]
        # Rank 0 had joined in the middle of the trial: all go on without overlapping.
        assert not any(one["auto, a rank joins early"][0][-48:])
        # All had found out before.
        assert all(one["auto, a rank joins late"][0][-48:])


def test_the_tuner_waits_until_it_is_known() -> None:
    found = run_ranks(2, torch_overlap.trial_beside_the_tuner).values
    assert found[0][0] == found[1][0]
    assert found[0][0][46:] == [True] * 14
    assert found[0][1] == [True] * 46 + [False] * 14  # rank 0 tunes


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4] if EVERY else [2])
def test_overlapping_is_tried_where_layers_wait(ranks: int) -> None:
    for told in run_ranks(ranks, torch_overlap.what_is_found_out, 0.01, 1024, 8, 120).values:
        assert told[0].startswith("being tried since step 15")
        assert told[1].startswith("tried from step 15 to")


@pytest.mark.long
def test_overlapping_is_not_kept_where_all_cpus_compute() -> None:
    for told in run_ranks(2, torch_overlap.what_is_found_out, 0.0, 512, 256, 120).values:
        assert not any(line.endswith("kept") for line in told)
