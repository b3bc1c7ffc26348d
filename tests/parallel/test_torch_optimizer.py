"""DistributedOptimizer: training equal to one process, what it refuses."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from rank_programs import torch_optimizer_programs as programs
from support.jobs.ranks import run_checks_on


@pytest.mark.parametrize(
    ("np", "program"),
    [
        (1, programs.alone),
        (2, programs.two_ranks),
        (3, programs.three_ranks),
        (4, programs.four_ranks),
    ],
)
def test_optimizer(np: int, program: Callable[[], list[str]]) -> None:
    run_checks_on(np, program, timeout=240)


def test_wire_names() -> None:
    """One name on the wire is one parameter, whenever parameters die."""
    import torch

    from hvdtune.torch.optimizer.parameter_names import wire_names as names

    first, second, third = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    assert names.number_to_ask_for(first, "wire.w", 0) == 1
    assert names.take_number(first, "wire.w", 0, 1) == "wire.w"
    assert names.number_to_ask_for(second, "wire.w", 0) == 2
    assert names.number_to_ask_for(second, "wire.w", 7) == 1  # other process sets have their own
    assert names.take_number(second, "wire.w", 0, 4) == "wire.w#4"  # another rank asked for more
    assert names.number_to_ask_for(first, "wire.w", 0) == 1
    assert names.number_to_ask_for(second, "wire.w", 0) == 4
    del second
    gc.collect()
    assert names.number_to_ask_for(third, "wire.w", 0) == 5
