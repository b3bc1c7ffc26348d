"""What rank programs that make mistakes share.

An outcome is ``(type of the exception, its text)``, or ``("", repr of the result)`` if nothing was
raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hvdtune as hvd

Outcome = tuple[str, str]


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "", repr(call())
    except Exception as error:
        return type(error).__name__, str(error)


def check_alive(case: str) -> None:
    """The engine still works: a collective of all ranks gives the right result."""
    result = hvd.allreduce(np.full(7, hvd.rank() + 1.0), op=hvd.Sum, name=f"after {case}")
    assert result.tolist() == [sum(range(1, hvd.size() + 1))] * 7, (case, result)
