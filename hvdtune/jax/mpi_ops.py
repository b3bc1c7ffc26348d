"""The collectives of JAX's face, on arrays and pytrees of them, inside and outside `jax.jit`.

All arrays of a pytree make one call, as one group if there are several. All functions have
gradients (see `gradients`), and none can be mapped with `jax.vmap`.

Ranks match calls by name. Calls without a name match by their order: outside `jax.jit` among all
calls of a kind, inside by their place in the function that is traced.

Outside, errors are as for NumPy arrays: HorovodInternalError for the job, ValueError and
TypeError for arguments. Inside, arguments are checked while JAX traces the function. Errors that
only the ranks together can detect are raised as JAX's JaxRuntimeError, with the same text, when
the program waits for the result. Shapes must be known inside: `allgather` needs equal numbers of
rows on all ranks, or `sizes`; `alltoall` with `splits` needs `received_splits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdtune.core import operations
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.operations import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Adasum, Average, Sum
from hvdtune.faces.arguments import allreduce_op, group_members, split_sizes
from hvdtune.jax import gradients, names, primitive
from hvdtune.jax.adapter import adapter, collectives, leaves_of, on_host
from hvdtune.jax.call import Call, members_of


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array, or all arrays of a pytree together, over the ranks; default: the average.

    Returns `postscale_factor * op over ranks (prescale_factor * tensor)`. Types and shapes must be
    equal on all ranks. `average` is the deprecated form of `op`.
    """
    call = Call(
        ALLREDUCE,
        process_set,
        name,
        op=allreduce_op(op, average),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return _call_on_tree(call, tensor)


def grouped_allreduce(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the arrays of a list or any other pytree together; the result is such a pytree."""
    call = Call(
        ALLREDUCE,
        process_set,
        name,
        grouped=True,
        op=allreduce_op(op, average),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return _call_on_tree(call, _group(tensors, call.operation))


def allgather(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    sizes: Sequence[int] | None = None,
) -> Any:
    """Join every rank's array, or each array of a pytree, along the first dimension in rank order.

    `sizes`: how many rows each rank of the set has, for all arrays. It is needed only inside
    `jax.jit`, if the ranks have different numbers.
    """
    return _gather(Call(ALLGATHER, process_set, name), tensor, sizes)


def grouped_allgather(
    tensors: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    sizes: Sequence[int] | None = None,
) -> Any:
    """`allgather` of the arrays of a list or any other pytree together; returns such a pytree."""
    group = _group(tensors, "grouped_allgather")
    return _gather(Call(ALLGATHER, process_set, name, grouped=True), group, sizes)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The array, or pytree of arrays, of global rank `root_rank`, on every rank."""
    return _call_on_tree(Call(BROADCAST, process_set, name, root_rank=root_rank), tensor)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    received_splits: Any = None,
) -> Any:
    """Send `splits[r]` rows to rank `r` of the set, and receive what the others send here.

    Returns the received rows in the order of senders; with `splits`, a pair of them and an int32
    array of how many each rank has sent. Without `splits`, every rank gets the same number. Each
    array of a pytree is sent like this. Inside `jax.jit`, `splits` must be known numbers, not
    traced ones, and `received_splits` (not needed outside) how many rows each rank sends.
    """
    call = Call(ALLTOALL, process_set, name)
    if splits is None:
        return _call_on_tree(call, tensor)
    rows = _known_splits("splits", splits)
    if names.is_plain():
        return _alltoall_now(replace(call, splits=rows), tensor)
    if received_splits is not None:
        counts = _known_splits("received_splits", received_splits)
    elif names.is_staged():
        raise ValueError(
            "alltoall with splits inside jax.jit needs received_splits=[...], the rows that come "
            "from each rank: shapes must be known there."
        )
    else:
        name = None if name is None else f"{name}.splits"
        sent = np.array(rows, np.int64)
        counts = tuple(collectives.alltoall(sent, None, name, process_set).tolist())
    received = _call_on_tree(replace(call, splits=rows, received=counts), tensor)
    return received, jnp.array(counts, jnp.int32)


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce an array or a pytree's (Average or Sum) and return this rank's share of the rows.

    Rank `r` of `n` gets `rows // n` rows, plus one if `r < rows % n`.
    """
    call = Call(
        REDUCESCATTER,
        process_set,
        name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return _call_on_tree(call, tensor)


def grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`reducescatter` of the arrays of a list or another pytree together; returns such a pytree."""
    call = Call(
        REDUCESCATTER,
        process_set,
        name,
        grouped=True,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return _call_on_tree(call, _group(tensors, call.operation))


def _group(tensors: Any, operation: str) -> Any:
    """The arrays of a group, a pytree or an iterator. Raises ValueError or TypeError for others."""
    if isinstance(tensors, dict | list | tuple):
        return tensors
    is_array = isinstance(tensors, jax.Array | np.ndarray)
    if is_array or jax.tree_util.all_leaves([tensors]):
        return group_members(tensors, is_array, operation)
    return tensors


def _gather(call: Call, tree: Any, sizes: Sequence[int] | None) -> Any:
    leaves, _ = leaves_of(tree, call.operation)
    if names.is_plain() or not leaves:
        return _call_on_tree(call, tree)
    _refuse_scalars(call, leaves)
    members, place = members_of(call.process_set)
    if sizes is not None:
        rows = tuple(split_sizes(sizes))
        if len(rows) != members or any(leaf.shape[0] != rows[place] for leaf in leaves):
            raise ValueError(
                f"{call.operation}: sizes has the rows of each of the {members} ranks, this "
                f"rank's at place {place}; {list(sizes)} does not fit arrays of "
                f"{', '.join(str(leaf.shape[0]) for leaf in leaves)} rows."
            )
        call = replace(call, sizes=(rows,) * len(leaves))
    elif not names.is_staged():
        own = np.array([[leaf.shape[0] for leaf in leaves]], np.int64)
        name = None if call.name is None else f"{call.name}.sizes"
        table = collectives.allgather(own, name, call.process_set)
        call = replace(call, sizes=tuple(tuple(column) for column in table.T.tolist()))
    return _call_on_tree(call, tree)


def _alltoall_now(call: Call, tree: Any) -> Any:
    leaves, structure = leaves_of(tree, call.operation)
    results = call.exchange([on_host(leaf) for leaf in leaves])
    counts = results[0][1] if results else np.array(call.splits, np.int32)
    *received, counts = jax.device_put([*(rows for rows, _ in results), counts])
    return structure.unflatten(received), counts


def _call_on_tree(call: Call, tree: Any) -> Any:
    leaves, structure = leaves_of(tree, call.operation)
    if not leaves:
        return tree
    if len(leaves) > 1 and call.kind not in (BROADCAST, ALLTOALL):
        call = replace(call, grouped=True)
    if names.is_plain():
        return structure.unflatten(primitive.run(call, leaves))
    call = replace(call, name=names.name_of(call.name, call.operation))
    _check(call, leaves)
    if call.kind not in (ALLREDUCE, BROADCAST):  # the shapes of their results depend on the place
        call = replace(call, place=members_of(call.process_set))
    return structure.unflatten(gradients.run(call, leaves))


def _check(call: Call, leaves: Sequence[Any]) -> None:
    """While a function is traced, raise the errors that would be raised at once outside."""
    members_of(call.process_set)
    if call.kind in (ALLREDUCE, REDUCESCATTER):
        if call.op == Adasum and call.kind == ALLREDUCE:
            operations.check_adasum(call.process_set)
        if call.kind == REDUCESCATTER and call.op not in (Average, Sum):
            raise HorovodInternalError("reducescatter only supports AVERAGE and SUM")
        codes = [adapter.codes[leaf.dtype] for leaf in leaves]
        operations.check_reduction(
            call.operation, codes, call.op, call.prescale_factor, call.postscale_factor
        )
    if call.kind == BROADCAST and not hasattr(call.root_rank, "__index__"):
        raise TypeError(
            f"broadcast: root_rank must be the number of a rank, not {call.root_rank!r}"
        )
    if call.kind not in (ALLREDUCE, BROADCAST):
        _refuse_scalars(call, leaves)
    if call.kind == ALLTOALL:
        _check_rows_sent(call, leaves)


def _check_rows_sent(call: Call, leaves: Sequence[Any]) -> None:
    members, _ = members_of(call.process_set)
    for splits in (call.splits, call.received):
        if splits is not None and len(splits) != members:
            raise ValueError(
                f"Number of entries in splits ({len(splits)}) does not equal the number of "
                f"processes in the set ({members})"
            )
    for leaf in leaves:
        rows = leaf.shape[0]
        if call.splits is None and rows % members != 0:
            raise ValueError(
                f"alltoall: splits not provided, and the first dimension ({rows}) is not "
                f"divisible by the number of processes ({members})"
            )
        if call.splits is not None and sum(call.splits) > rows:
            raise ValueError(
                "Sum of splits entries is greater than the first dimension: "
                f"{sum(call.splits)} > {rows}"
            )


def _refuse_scalars(call: Call, leaves: Sequence[Any]) -> None:
    if any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError(f"{call.operation} does not support scalar tensors")


def _known_splits(what: str, splits: Any) -> tuple[int, ...]:
    """Numbers of rows, which must be known now. Raises ValueError for traced ones."""
    if isinstance(splits, jax.core.Tracer):
        raise ValueError(
            f"alltoall: {what} must be known numbers, not traced ones: shapes depend on them."
        )
    rows = adapter.splits(np.asarray(splits) if isinstance(splits, jax.Array) else splits)
    assert rows is not None
    return tuple(rows)
