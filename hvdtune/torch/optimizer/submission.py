"""A reducer's records of parameters, of the units they are reduced in, and of reductions."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.hooks import GradientHook, StepState
from hvdtune.faces.gradients import UNKNOWN, Layout
from hvdtune.torch import async_ops

# Errors of one reduction; anything else (Ctrl-C) concerns the program.
NAMED_ERRORS: tuple[type[Exception], ...] = (
    HorovodInternalError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_MARK = "names_parameter"  # on errors whose text names the parameter


@dataclass(eq=False, slots=True)
class Unit:
    """Parameters reduced together, and how far they are in the current step."""

    grouped: bool
    members: list[Member] = field(default_factory=list)
    ready: int = 0  # members that have had their last backward pass of the step
    plain: bool = False  # one parameter, whose gradient is reduced as it is, in place

    def settle(self, settled: bool) -> None:
        """Set whether the ranks know all about the members."""
        for member in self.members:
            member.settled = settled


class Member(GradientHook):
    """A parameter of a unit, and how far it is in the current step; its own hook."""

    __slots__ = ("filler", "layout", "name", "unit", "wire_name")

    def __init__(
        self, parameter: torch.Tensor, step: StepState, passes: int, name: str, unit: Unit
    ) -> None:
        super().__init__(parameter, step, passes)
        self.name = name  # for messages
        self.unit = unit
        self.wire_name = ""  # until the ranks have agreed on one
        self.layout: Layout = UNKNOWN  # what all ranks know of its gradients
        # The last gradient that this rank made because it had none.
        self.filler: weakref.ref[torch.Tensor] | None = None


@dataclass(eq=False, slots=True)
class Submission:
    """A reduction under way: its inputs, and how to undo the compression.

    ``wait`` is for reductions without a handle; it returns the reduced tensors, one per member.
    """

    members: Sequence[Member]
    payloads: Sequence[torch.Tensor]
    contexts: Sequence[Any]
    versions: Sequence[int]  # of the payloads, when they were submitted
    handle: int | None = None
    wait: Callable[[], Sequence[torch.Tensor]] | None = None
    dropped: bool = False  # nobody wants the result

    @property
    def label(self) -> str:
        """The parameters, for messages."""
        return label(self.members)

    def is_done(self) -> bool:
        """Whether the engine is known to have finished it."""
        if self.handle is None:
            return False
        try:
            return async_ops.poll(self.handle)
        except ValueError:  # the job that ran it is gone
            return True

    def results(self) -> Sequence[torch.Tensor]:
        """Wait, and return the reduced tensors. Raises HorovodInternalError."""
        if self.wait is not None:
            return self.wait()
        result = async_ops.synchronize(self.handle) if self.handle is not None else None
        if result is None:
            raise HorovodInternalError("The job was shut down before the reduction was done.")
        return result if isinstance(result, tuple) else (result,)

    def discard(self) -> None:
        """Wait until the engine has finished it, and ignore its outcome."""
        with contextlib.suppress(HorovodInternalError):
            self.results()


def label(members: Sequence[Member]) -> str:
    """How messages refer to some parameters."""
    names = ", ".join(repr(member.name) for member in members[:5])
    if len(members) == 1:
        return f"parameter {names}"
    return f"the group of parameters {names}{' …' if len(members) > 5 else ''}"


def named(error: Exception, members: Sequence[Member]) -> Exception:
    """``error`` with its text prefixed by the parameters, unless it already names some."""
    if getattr(error, _MARK, False):
        return error
    kind = next(kind for kind in NAMED_ERRORS if isinstance(error, kind))
    result = kind(f"Gradient of {label(members)}: {error}")
    setattr(result, _MARK, True)
    result.__cause__ = error
    return result
