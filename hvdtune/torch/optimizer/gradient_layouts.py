"""Whether the gradients of a parameter are dense or sparse."""

from __future__ import annotations

import torch

from hvdtune.faces.gradients import DENSE, UNKNOWN, Layout


def layout_of(gradient: torch.Tensor | None) -> Layout:
    """The layout of one gradient."""
    if gradient is None:
        return UNKNOWN
    return Layout(False, gradient.sparse_dim()) if gradient.is_sparse else DENSE


def is_view(gradient: torch.Tensor | None) -> bool:
    """Whether it uses the memory of another tensor."""
    return gradient is not None and gradient._is_view()
