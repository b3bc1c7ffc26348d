"""What tells the recording that an optimizer's step has ended."""

from hvdtune.core.marks import step_ended

__all__ = ["step_ended"]
