"""Reducing gradients in place, in the order in which they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxnet.ndarray import NDArray

from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Average
from hvdtune.faces.buckets import split_evenly
from hvdtune.mxnet.compression import Compression
from hvdtune.mxnet.mpi_ops import allreduce_, grouped_allreduce_

Named = tuple[str, NDArray]


def check_options(predivide: float, num_groups: int) -> None:
    """Raise ValueError for a factor or a number of groups that cannot be."""
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

    ``named``: (name, gradient) in the order of the model, whose first are needed first.
    """
    if not process_set.included() or process_set.size() == 1:
        return
    scale = {"prescale_factor": 1.0 / predivide, "postscale_factor": predivide}
    sent = [(name, *compression.compress(gradient)) for name, gradient in named]
    if num_groups > 0:
        for place, group in enumerate(split_evenly(sent, num_groups)):
            label = f"{prefix}{group[0][0]}:{group[-1][0]}"
            tensors = [tensor for _, tensor, _ in group]
            grouped_allreduce_(
                tensors, None, label, -place, process_set=process_set, op=Average, **scale
            )
    else:
        for place, (name, tensor, _) in enumerate(sent):
            allreduce_(
                tensor,
                None,
                f"{prefix}{name}",
                -place,
                process_set=process_set,
                op=Average,
                **scale,
            )
    for (_, gradient), (_, tensor, context) in zip(named, sent, strict=True):
        if tensor is not gradient:
            gradient[:] = compression.decompress(tensor, context)
