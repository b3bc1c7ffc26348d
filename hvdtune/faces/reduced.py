"""Gradients that were reduced already, so that nobody reduces them once more.

An optimizer reduces what it is given; but a tape, or the optimizer's own `compute_gradients`, may
have done it before. Whoever has reduced marks the tensors. What is computed from a marked tensor
is not marked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MARK = "_hvdtune_reduced"


def mark(gradients: Iterable[Any]) -> None:
    """These gradients (of a framework whose tensors take attributes; None is skipped) are done."""
    for gradient in gradients:
        if gradient is not None:
            setattr(gradient, _MARK, True)


def is_marked(gradient: Any) -> bool:
    """Whether it is what was given to `mark`."""
    return getattr(gradient, _MARK, False) is True
