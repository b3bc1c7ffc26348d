"""The two tiers of tests: `python -m pytest` runs all but those that are marked `long`.

HVDTUNE_TEST_LONG=1 adds to both what repeats others in another form.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

EVERY = os.environ.get("HVDTUNE_TEST_LONG", "0") not in ("", "0")


def long_too(*quick: Any, long: Iterable[Any]) -> list[Any]:
    """Parameters of a test: `quick`, and those of `long` that are not quick, which are long."""
    marked = [pytest.param(value, marks=pytest.mark.long) for value in long if value not in quick]
    return [*quick, *marked]
