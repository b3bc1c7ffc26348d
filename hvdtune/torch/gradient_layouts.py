"""Whether the gradients of a parameter are dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """What gradients of one parameter were seen: dense ones, sparse ones of so many sparse dims.

    Neither means that nobody has seen one; where both were seen, all are sent as dense ones.
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


def layout_of(gradient: torch.Tensor | None) -> Layout:
    """The layout of one gradient."""
    if gradient is None:
        return UNKNOWN
    return Layout(False, gradient.sparse_dim()) if gradient.is_sparse else DENSE


def is_view(gradient: torch.Tensor | None) -> bool:
    """Whether it lies in the memory of another tensor."""
    return gradient is not None and gradient._is_view()
