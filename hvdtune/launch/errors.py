"""The error of a launch that cannot be carried out as asked, and how a failed job is told."""

from __future__ import annotations

#: Programs look for these words of Horovod's in the error of a job whose ranks have failed.
FAILED = "Horovod detected that one or more processes exited with non-zero status"


class LaunchError(ValueError):
    """The user asked for something the launcher cannot do; the text also says what it can."""
