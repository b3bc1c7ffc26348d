"""The collectives as differentiable functions.

Gradients are Horovod's. They describe the loss summed or averaged over ranks, as training scripts
use it; they are not always the mathematical transpose. With ``g`` the gradient of the output:

    allreduce        allreduce(g), same operator and factors
    allgather        this rank's rows of the average of g over ranks
    broadcast        average of g over ranks on the root, zero elsewhere
    alltoall         alltoall(g) with the received splits: every row's gradient goes back
    reducescatter    allgather(g) * factors, and * number of ranks when the operator is Sum

The backward call of a call named "x" is named "x.grad".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdtune.core.operations import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST
from hvdtune.core.reduce_ops import Average, Sum
from hvdtune.core.world import rank
from hvdtune.jax import names, primitive
from hvdtune.jax.call import Call, members_of


def run(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """The results of a call, differentiable by `jax.grad`."""
    kinds = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arrays]

    @jax.custom_vjp
    def collective(*inputs: Any) -> tuple[Any, ...]:
        return tuple(primitive.run(call, inputs))

    def forward(*inputs: Any) -> tuple[Any, None]:
        return collective(*inputs), None

    def backward(_: None, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_backward(call, kinds, gradients))

    collective.defvjp(forward, backward)
    return list(collective(*arrays))


def _backward(call: Call, inputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """The gradients of the inputs; for integers and bools, JAX's zeros without a value."""
    given = None if call.name is None else f"{call.name}.grad"
    call = replace(call, name=names.name_of(given, call.operation))
    has = [jnp.issubdtype(one.dtype, jnp.inexact) for one in inputs]
    places = [i for i, one in enumerate(has) if one]
    results: list[Any] = [np.zeros(one.shape, jax.dtypes.float0) for one in inputs]
    if places:
        if call.sizes is not None:
            call = replace(call, sizes=tuple(call.sizes[i] for i in places))
        shapes = [inputs[i].shape for i in places]
        found = _gradients(call, shapes, [gradients[i] for i in places])
        for i, gradient in zip(places, found, strict=True):
            results[i] = gradient
    return results


def _gradients(call: Call, shapes: Sequence[Any], gradients: list[Any]) -> list[Any]:
    if call.kind == ALLREDUCE:
        return run(call, gradients)
    place = members_of(call.process_set)
    if call.kind == ALLTOALL:
        back = replace(call, splits=call.received, received=call.splits, place=place)
        returned = run(back, gradients)
        return [_padded(one, shape[0]) for one, shape in zip(returned, shapes, strict=True)]
    if call.kind in (ALLGATHER, BROADCAST):
        average = Call(
            ALLREDUCE,
            call.process_set,
            call.name,
            grouped=call.grouped or len(gradients) > 1,
            op=Average,
            place=place,  # the rest of the gradient depends on it
        )
        averages = run(average, gradients)
        if call.kind == BROADCAST:
            is_root = rank() == call.root_rank
            return averages if is_root else [jnp.zeros_like(one) for one in averages]
        return [_own_rows(call, i, one, shapes[i][0]) for i, one in enumerate(averages)]
    members, _ = place
    scale = call.prescale_factor * call.postscale_factor * (members if call.op == Sum else 1)
    every = [
        [rows // members + (k < rows % members) for k in range(members)] for rows, *_ in shapes
    ]
    uneven = any(len(set(sizes)) > 1 for sizes in every)
    gather = Call(
        ALLGATHER,
        call.process_set,
        call.name,
        grouped=call.grouped,
        sizes=tuple(tuple(sizes) for sizes in every) if uneven else None,
        place=place,
    )
    return run(gather, [one * jnp.asarray(scale, one.dtype) for one in gradients])


def _own_rows(call: Call, index: int, gathered: Any, rows: int) -> Any:
    _, place = members_of(call.process_set)
    before = place * rows if call.sizes is None else sum(call.sizes[index][:place])
    return gathered[before : before + rows]


def _padded(returned: Any, rows: int) -> Any:
    """`returned`, with zeros for the rows that were not sent."""
    missing = rows - returned.shape[0]
    if missing == 0:
        return returned
    return jnp.concatenate([returned, jnp.zeros((missing, *returned.shape[1:]), returned.dtype)])
