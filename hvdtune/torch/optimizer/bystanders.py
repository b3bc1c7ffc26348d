"""Distributed optimizers whose gradients are computed in a backward pass for another one.

A loss often reaches parameters of several optimizers: the generator's passes through the
discriminator. An optimizer that does not step afterwards is left with gradients under way.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from hvdtune.core.hooks import StepState

_numbers = itertools.count(1)
_living: weakref.WeakSet[Bystander] = weakref.WeakSet()


@dataclass(eq=False)
class Bystander:
    """One distributed optimizer among those of the process."""

    kind: str  # of the wrapped optimizer
    names: Sequence[str]  # of its parameters
    step: StepState
    number: int = field(default_factory=lambda: next(_numbers))
    passed_by: str = ""  # an optimizer that stepped while this one's gradients were under way

    def __post_init__(self) -> None:
        _living.add(self)

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.names[:2])) + (", …" if len(self.names) > 2 else "")
        return f"{self.kind} (DistributedOptimizer number {self.number}, of parameters {shown})"

    @property
    def is_alone(self) -> bool:
        """Whether the process has no other distributed optimizer."""
        return len(_living) < 2

    def steps(self) -> None:
        """Note that this one steps: others' gradients under way come from its backward pass."""
        if not self.is_alone:
            for other in list(_living):
                if other is not self and other.step.pending:
                    other.passed_by = str(self)

    def advice(self) -> str:
        """What to do about gradients under way that nobody waits for; "" if it is alone."""
        if self.is_alone:
            return ""
        cause = (
            f"{self.passed_by} has stepped since, so its backward pass went through them"
            if self.passed_by
            else "If they come from a backward pass for another optimizer, it went through them"
        )
        return (
            f"In flight are the gradients of {self}. {cause}: call requires_grad_(False) on these "
            "parameters during that pass, or synchronize() on this optimizer before its "
            "zero_grad(), or step() all optimizers after one backward()."
        )
