"""The two tiers of tests: `python -m pytest` runs all but those that are marked `long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_too(*quick: Any, long: Iterable[Any]) -> list[Any]:
    """Parameters of a test: `quick`, and those of `long` that are not quick, which are long."""
    marked = [pytest.param(value, marks=pytest.mark.long) for value in long if value not in quick]
    return [*quick, *marked]
