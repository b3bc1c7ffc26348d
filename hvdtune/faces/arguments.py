"""Arguments that all faces take: one check and one text for each."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from hvdtune.core.reduce_ops import Average, Sum

# Frames of these packages are between a script and the warning about its call.
_INSIDE = ("hvdtune.", "torch.")


def allreduce_op(op: int | None, average: bool | None) -> int:
    """The operator given by `op` or the deprecated `average`; Average if neither is set.

    Warns (DeprecationWarning) about `average`. Raises ValueError if both are set.
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


def group_members(tensors: Iterable[Any], is_tensor: bool, operation: str) -> list[Any]:
    """The tensors of a group as a list. Raises ValueError for a single tensor instead of a group.

    A tensor is iterable as well, and would be taken for a group of its rows. Raises TypeError if
    `tensors` is not iterable.
    """
    if is_tensor:
        raise ValueError(f"{operation} takes a list of tensors, not one tensor.")
    try:
        return list(tensors)
    except TypeError:
        raise TypeError(f"{operation} takes a list of tensors, not {tensors!r}.") from None


def split_sizes(splits: Iterable[Any]) -> list[int]:
    """The rows for each receiver of an alltoall, from a sequence that is no tensor.

    Raises ValueError. The engine, which knows the process set, checks their number and sum.
    """
    try:
        rows = [operator.index(row) for row in splits]
    except (TypeError, ValueError):
        raise ValueError(
            f"alltoall takes splits of 32-bit integer type, one for each rank, not {splits!r}."
        ) from None
    # Python's integers have no width; those that fit count as 32-bit integers here.
    if any(abs(row) >= 2**31 for row in rows):
        raise ValueError("alltoall takes splits of 32-bit integer type; one is too large.")
    return rows


def check_splits(shape: Sequence[int], dtype: str) -> None:
    """Raise ValueError unless a tensor with splits is 1-D and of 32-bit integers."""
    if len(shape) != 1:
        raise ValueError(f"alltoall takes a 1D splits tensor, not one of shape {tuple(shape)}.")
    if dtype != "int32":
        raise ValueError(f"alltoall takes splits of 32-bit integer type, not {dtype}.")


def _levels_to_the_script() -> int:
    """The `stacklevel` of the code that called into hvdtune, for a warning by our caller.

    Python shows a DeprecationWarning only if it names the script. The number of frames up to the
    script depends on the form of the collective and on whether this is a backward pass.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame = frame.f_back
        level += 1
    return level
