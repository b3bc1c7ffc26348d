"""Makes ranks equal: parameters and optimizers' states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hvdtune.core.objects import allgather_object
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.jax import names
from hvdtune.jax.adapter import check_dtype
from hvdtune.jax.mpi_ops import broadcast


def broadcast_parameters(
    params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """A pytree like `params` with the arrays of global rank `root_rank`, on every rank of the set.

    For parameters, optimizers' states, random keys. Leaves that are not arrays, such as Python's
    numbers, stay this rank's: send them with `broadcast_object`. Works only outside `jax.jit`.
    Raises ValueError on every rank if the arrays differ in place, type or shape, or have a type
    that cannot be sent; RuntimeError in a function that is traced.
    """
    if not names.is_plain():
        raise RuntimeError(
            "broadcast_parameters works outside of functions that JAX traces; use broadcast there."
        )
    paths, structure = jax.tree.flatten_with_path(params)
    leaves = [leaf for _, leaf in paths]
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]
    arrays = [_as_sent(leaves[i]) for i in places]
    described = [
        f"{jax.tree_util.keystr(paths[i][0])} of type {array.dtype} and shape {list(array.shape)}"
        for i, array in zip(places, arrays, strict=True)
    ]
    _check(described, arrays, process_set)
    received = broadcast(arrays, root_rank, name="broadcast_parameters", process_set=process_set)
    for i, array in zip(places, received, strict=True):
        leaves[i] = _as_given(leaves[i], array)
    return jax.tree.unflatten(structure, leaves)


def _check(described: list[str], arrays: list[Any], process_set: ProcessSet) -> None:
    fault = None
    try:
        for array in arrays:
            check_dtype(array.dtype, "broadcast_parameters")
    except ValueError as error:
        fault = str(error)
    every = allgather_object(
        (fault, described), name="broadcast_parameters", process_set=process_set
    )
    ranks = process_set.ranks or range(len(every))
    told = list(zip(ranks, every, strict=True))
    faults = [f"on rank {other}: {text}" for other, (text, _) in told if text]
    if faults:
        raise ValueError(fault or f"broadcast_parameters {faults[0]}")
    first = every[0][1]
    for other, (_, theirs) in told:
        if theirs != first:
            only = sorted({*theirs} ^ {*first}) or ["the same arrays in another order"]
            raise ValueError(
                f"broadcast_parameters: ranks {ranks[0]} and {other} have different arrays; not on "
                f"both: {', '.join(only[:4])}."
            )


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _as_sent(leaf: Any) -> Any:
    """An array of a type that the engine has: random keys become uint32."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return _bits(leaf, jnp.int32) if leaf.dtype == jnp.uint32 else leaf


def _as_given(leaf: Any, array: Any) -> Any:
    """Convert `array` back to the type of `leaf`: undoes `_as_sent`."""
    if not _is_key(leaf):
        return _bits(array, jnp.uint32) if leaf.dtype == jnp.uint32 else array
    return jax.random.wrap_key_data(_bits(array, jnp.uint32), impl=jax.random.key_impl(leaf))


def _bits(array: Any, dtype: Any) -> Any:
    return jax.lax.bitcast_convert_type(array, dtype)
