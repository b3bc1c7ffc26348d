"""The two tiers of tests: `python -m pytest` runs all but those that are marked `long`.

HVDTUNE_TEST_LONG=1 adds to both what repeats others in another form. HVDTUNE_TEST_UNTIL says until
when tests may begin, in s since 1970; those whose turn comes later are skipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import pytest

EVERY = os.environ.get("HVDTUNE_TEST_LONG", "0") not in ("", "0")
TOO_LATE = "its turn came after the time that HVDTUNE_TEST_UNTIL gives"
UNTIL = float(os.environ.get("HVDTUNE_TEST_UNTIL") or "inf")


def too_late() -> bool:
    """Whether no more tests may begin."""
    return time.time() > UNTIL


def long_too(*quick: Any, long: Iterable[Any]) -> list[Any]:
    """Parameters of a test: `quick`, and those of `long` that are not quick, which are long."""
    marked = [pytest.param(value, marks=pytest.mark.long) for value in long if value not in quick]
    return [*quick, *marked]
