"""Whether a parameter's gradient is dense or sparse, agreed on by the ranks.

A rank that did not compute a gradient takes part in its reduction all the same, and must do what
the others do: an allreduce of zeros if theirs is dense, two allgathers of nothing if it is sparse.
It cannot tell from the parameter. So the ranks tell each other, once, at the end of the first step
in which any of them has the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.objects import allgather_object
from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Max
from hvdtune.torch import async_ops


@dataclass(frozen=True)
class Layout:
    """What gradients of one parameter were seen: dense ones, sparse ones with these many indices.

    Neither means that nobody has seen one.
    """

    dense: bool
    sparse_dims: int

    @property
    def known(self) -> bool:
        """Whether anybody has seen a gradient."""
        return self.dense or self.sparse_dims > 0

    @property
    def mixed(self) -> bool:
        """Whether some ranks have a dense gradient and others a sparse one."""
        return self.dense and self.sparse_dims > 0


UNKNOWN = Layout(dense=False, sparse_dims=0)
DENSE = Layout(dense=True, sparse_dims=0)


def layout_of(gradient: torch.Tensor | None) -> Layout:
    """The layout of one gradient."""
    if gradient is None:
        return UNKNOWN
    return Layout(False, gradient.sparse_dim()) if gradient.is_sparse else DENSE


def agree_on_layouts(
    seen: Sequence[Layout], names: Sequence[str], label: str, process_set: ProcessSet
) -> list[Layout]:
    """Join what all ranks of the set have seen of the parameters ``names``, in their order.

    Collective, under the name ``label``. Raises HorovodInternalError on all of them, naming the
    parameters, when the ranks do not have the same ones.
    """
    table = torch.tensor(
        [[int(layout.dense) for layout in seen], [layout.sparse_dims for layout in seen]],
        dtype=torch.int32,
    )
    handle = async_ops.allreduce_async_(table, name=label, op=Max, process_set=process_set)
    try:
        async_ops.synchronize(handle)
    except HorovodInternalError as error:
        # A mismatch is known to all ranks, so all come here; after anything else nobody can talk.
        if "Mismatched" not in str(error):
            raise
        raise HorovodInternalError(_difference(names, label, process_set)) from error
    return [Layout(bool(dense), dims) for dense, dims in table.t().tolist()]


def _difference(names: Sequence[str], label: str, process_set: ProcessSet) -> str:
    every = allgather_object(list(names), name=f"{label}.names", process_set=process_set)
    everybody, anybody = set.intersection(*map(set, every)), set.union(*map(set, every))
    assert process_set.ranks
    lines = [
        f"{name} (rank {', '.join(str(rank) for rank in having)} only)"
        for name in sorted(anybody - everybody)[:5]
        if (having := [r for r, have in zip(process_set.ranks, every, strict=True) if name in have])
    ]
    return (
        "The ranks have different parameters that require gradients, but every rank of "
        f"DistributedOptimizer must have the same: {'; '.join(lines)}."
    )
