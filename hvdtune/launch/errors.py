"""The error of a launch that cannot be carried out as asked."""

from __future__ import annotations


class LaunchError(ValueError):
    """The user asked for something the launcher cannot do; the text also says what it can."""
