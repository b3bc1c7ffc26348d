"""Reduces gradients in place, in the order in which they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxnet.ndarray import NDArray

from hvdtune.core.libraries import mxnet_library
from hvdtune.core.observation.marks import step_ended
from hvdtune.core.process_sets import ProcessSet
from hvdtune.faces.buckets import split_evenly
from hvdtune.mxnet.compression import Compression
from hvdtune.mxnet.mpi_ops import average_gradients

#: A name, the gradient, and an NDArray that ties together the name's operations of all steps.
Named = tuple[str, NDArray, NDArray]


def step_ends(owner: object, arrays: Sequence[NDArray]) -> None:
    """A training step of ``owner`` ends when MXNet has computed these NDArrays."""
    handles = [array.handle.value for array in arrays]
    step_ended(owner, lambda: mxnet_library.push_mxnet_step_mark(handles))


def check_options(predivide: float, num_groups: int) -> None:
    """Raise ValueError for an invalid factor or number of groups."""
    if not predivide > 0:
        raise ValueError(f"gradient_predivide_factor={predivide} must be > 0.")
    if num_groups < 0:
        raise ValueError(f"num_groups={num_groups} must be 0 (each alone) or more.")


def reduce(
    named: Sequence[Named],
    process_set: ProcessSet,
    predivide: float = 1.0,
    num_groups: int = 0,
    prefix: str = "",
    compression: Any = Compression.none,
) -> None:
    """Average the gradients over the ranks of the set, in place; returns at once.

    ``named``: in the order of the model; the next step needs the first ones first.
    """
    if not process_set.included() or process_set.size() == 1:
        return
    factors = (1.0 / predivide, predivide)
    sent = [(name, *compression.compress(gradient), tie) for name, gradient, tie in named]
    grouped = num_groups > 0
    groups = split_evenly(sent, num_groups) if grouped else [[one] for one in sent]
    for place, group in enumerate(groups):
        names = [name for name, *_ in group]
        label = f"{names[0]}:{names[-1]}" if grouped else names[0]
        tensors = [tensor for _, tensor, _, _ in group]
        ties = [tie for *_, tie in group]
        average_gradients(tensors, f"{prefix}{label}", -place, factors, process_set, grouped, ties)
    for (_, gradient, _), (_, tensor, context, _) in zip(named, sent, strict=True):
        if tensor is not gradient:
            gradient[:] = compression.decompress(tensor, context)
