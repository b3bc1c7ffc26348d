"""The parameters of hvdtune.torch's functions: names, order and defaults are Horovod's.

Scripts call them with positional arguments, so even the order within a family matters (it differs
between families: the process set comes before the factors in reducescatter, behind them in
allreduce).
"""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torch")

import hvdtune.torch as hvd

SET = "process_set=global"
FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
ALLREDUCE = f"average=None, name=None, op=None, {FACTORS}, {SET}"
COMPRESSED = f"average=None, name=None, compression=none, op=None, {FACTORS}, {SET}"
SCATTER = f"op=0, {SET}, {FACTORS}"
NAMED = f"name=None, {SET}"

SIGNATURES = {
    "allreduce": f"tensor, {COMPRESSED}",
    "allreduce_": f"tensor, {ALLREDUCE}",
    "allreduce_async": f"tensor, {ALLREDUCE}",
    "allreduce_async_": f"tensor, {ALLREDUCE}",
    "grouped_allreduce": f"tensors, {COMPRESSED}",
    "grouped_allreduce_": f"tensors, {ALLREDUCE}",
    "grouped_allreduce_async": f"tensors, {ALLREDUCE}",
    "grouped_allreduce_async_": f"tensors, {ALLREDUCE}",
    "sparse_allreduce_async": f"tensor, name, op, {SET}",
    "allgather": f"tensor, {NAMED}",
    "allgather_async": f"tensor, {NAMED}",
    "grouped_allgather": f"tensors, {NAMED}",
    "grouped_allgather_async": f"tensors, {NAMED}",
    "broadcast": f"tensor, root_rank, {NAMED}",
    "broadcast_": f"tensor, root_rank, {NAMED}",
    "broadcast_async": f"tensor, root_rank, {NAMED}",
    "broadcast_async_": f"tensor, root_rank, {NAMED}",
    "alltoall": f"tensor, splits=None, {NAMED}",
    "alltoall_async": f"tensor, splits=None, {NAMED}",
    "reducescatter": f"tensor, name=None, compression=none, {SCATTER}",
    "reducescatter_async": f"tensor, name=None, {SCATTER}",
    "grouped_reducescatter": f"tensors, name=None, compression=none, {SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {SCATTER}",
    "join": "device=-1",
    "barrier": SET,
    "poll": "handle",
    "synchronize": "handle",
}
OPERATORS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}


def written(parameter: inspect.Parameter) -> str:
    """``name`` or ``name=default``."""
    assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    named = {id(hvd.global_process_set): "global", id(hvd.Compression.none): "none"}
    return f"{parameter.name}={named.get(id(parameter.default), repr(parameter.default))}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert ", ".join(map(written, parameters)) == SIGNATURES[name]


def test_operators_are_plain_numbers() -> None:
    for name, number in OPERATORS.items():
        assert type(getattr(hvd, name)) is int
        assert getattr(hvd, name) == number
