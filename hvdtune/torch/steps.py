"""What tells the recording that an optimizer's step has ended."""

from hvdtune.core.observation.marks import after_each_step, step_ended
from hvdtune.torch.phases import follow

__all__ = ["step_ended"]

after_each_step(follow)
