"""Notes of parameters' hooks about a step: native, because the hooks run so often."""

from __future__ import annotations

from hvdtune._native import (
    GradientHook,
    StepState,
    begin_step,
    gather_gradients,
    is_changed,
)

__all__ = ["GradientHook", "StepState", "begin_step", "gather_gradients", "is_changed"]
