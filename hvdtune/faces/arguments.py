"""Arguments that all faces take: one check and one text for each."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from hvdtune.core.reduce_ops import Average, Sum

# Frames of these packages lie between a script and the warning about its call.
_INSIDE = ("hvdtune.", "torch.")


def allreduce_op(op: int | None, average: bool | None) -> int:
    """The operator that `op` and the deprecated `average` ask for; Average if neither is set.

    Warns (DeprecationWarning) of `average`. Raises ValueError if both are set.
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
    """The `stacklevel` of the code that called into hvdtune, for a warning by our caller.

    Python shows a DeprecationWarning only to the script that it names. How far up the script is
    depends on the form of the collective and on whether this is a backward pass.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame = frame.f_back
        level += 1
    return level
