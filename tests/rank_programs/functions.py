"""Functions that tests of `hvdtune.run` call on ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import hvdtune as hvd


def summed(array: np.ndarray) -> tuple[Any, int, str | None, bool]:
    """The array's multiples, summed over the ranks; rank; host; whether the call's key is seen."""
    hvd.init()
    total = hvd.allreduce(array * (hvd.rank() + 1), op=hvd.Sum)
    sees_key = "HVDTUNE_FUNCTION_KEY" in os.environ
    return total, hvd.rank(), os.environ.get("HOROVOD_HOSTNAME"), sees_key


def failing() -> None:
    """Fail on rank 1, while the others wait for it."""
    hvd.init()
    if hvd.rank() == 1:
        raise LookupError("no such batch")
    hvd.allreduce(np.ones(3))
