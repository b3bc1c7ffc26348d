"""Checks of arguments that only this face knows: deprecated ones and splits given as tensors."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType

import torch

from hvdtune.core.reduce_ops import Average, Sum

_INSIDE = ("hvdtune.", "torch.")


def allreduce_op(op: int | None, average: bool | None) -> int:
    """The operator that ``op`` and the deprecated ``average`` ask for; Average when neither is set.

    Raises ValueError when both are set.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average; provide only one of them.")
    warnings.warn(
        "The parameter average is deprecated; use op=Average or op=Sum.",
        DeprecationWarning,
        stacklevel=_levels_to_the_script(),
    )
    return Average if average else Sum


def _levels_to_the_script() -> int:
    """The ``stacklevel`` of the code that called into hvdtune, for a warning by our caller.

    Python shows a DeprecationWarning only to the script that it names, and how far up the script is
    depends on the form of the collective and on whether this is the backward pass.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame = frame.f_back
        level += 1
    return level


def split_sizes(splits: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    """The rows for every receiver as a list. Raises ValueError unless 1-D and of 32-bit integers.

    Their number and sum are checked by the engine, which knows the process set.
    """
    if splits is None:
        return None
    if not isinstance(splits, torch.Tensor):
        try:
            splits = torch.as_tensor(splits, device="cpu")
        except (RuntimeError, TypeError, ValueError):
            raise ValueError(
                f"alltoall takes splits of 32-bit integer type, one for each rank, not {splits!r}."
            ) from None
        # Python integers have no width; those that fit are 32-bit integers here.
        if splits.numel() == 0 or splits.dtype is torch.int64:
            if any(abs(n) >= 2**31 for n in splits.flatten().tolist()):
                raise ValueError("alltoall takes splits of 32-bit integer type; one is too large.")
            splits = splits.to(torch.int32)
    if splits.dim() != 1:
        raise ValueError(
            f"alltoall takes a 1D splits tensor, not one of shape {tuple(splits.shape)}."
        )
    if splits.dtype is not torch.int32:
        raise ValueError(f"alltoall takes splits of 32-bit integer type, not {splits.dtype}.")
    return splits.tolist()
