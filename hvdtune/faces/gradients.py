"""What the ranks must know about a gradient before they reduce it together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """The kinds of gradients seen for a parameter: dense; sparse, with `sparse_dims` sparse dims.

    If neither is set, nobody has seen one; if both are, all are sent as dense ones.
    """

    dense: bool
    sparse_dims: int

    @property
    def known(self) -> bool:
        """Whether anybody has seen a gradient."""
        return self.dense or self.sparse_dims > 0

    @property
    def sparse(self) -> bool:
        """Whether the gradients are sent as sparse ones."""
        return self.sparse_dims > 0 and not self.dense


UNKNOWN = Layout(dense=False, sparse_dims=0)
DENSE = Layout(dense=True, sparse_dims=0)


def drop_waiting_gradients(optimizer: Any) -> None:
    """Forget gradients that accumulate outside the optimizer's variables, as tf-keras' do."""
    drop = getattr(getattr(optimizer, "_agg_helper", None), "drop", None)
    if drop is not None:
        drop()
