"""What an estimator's backend runs, on ranks that the tests start."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pyspark  # noqa: F401  (ranks are forked from a process that has these)
import torch  # noqa: F401

# Ranks are forked from a process without threads, in which PyArrow must start none. That process
# has the environment of pytest, which imports this file before.
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"


def run(variables: dict[str, str], call: bytes) -> Any:
    os.environ.update(variables)
    fn, args, kwargs = pickle.loads(call)
    return fn(*args, **kwargs)
