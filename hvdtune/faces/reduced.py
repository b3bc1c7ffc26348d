"""Gradients that have been reduced already, so that they are not reduced again.

An optimizer reduces the gradients it is given, but a tape, or the optimizer's own
`compute_gradients`, may have done so before. The code that reduces them marks the tensors. A tensor
computed from a marked one is not marked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MARK = "_hvdtune_reduced"


def mark(gradients: Iterable[Any]) -> None:
    """Mark gradients as reduced (of a framework whose tensors take attributes; None is skipped)."""
    for gradient in gradients:
        if gradient is not None:
            setattr(gradient, _MARK, True)


def is_marked(gradient: Any) -> bool:
    """Whether it was given to `mark`."""
    return getattr(gradient, _MARK, False) is True
