"""Elastic training with Keras, `hvd.elastic`: a model's state, and callbacks that keep it current.

Knows `hvdtune.elastic` and the face's variables; docs/elastic.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.elastic import ObjectState, State, run_translated
from hvdtune.keras.elastic.callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from hvdtune.keras.elastic.state import KerasState

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

# If a job is lost, TensorFlow and JAX wrap the error of a collective in a compiled step in these
# types. Their texts then contain the operation's type, or XLA's prefix. The name of the package
# alone proves nothing: it is in the stack that TensorFlow adds to any error.
_WRAPPERS = {
    **dict.fromkeys(("UnknownError", "AbortedError"), "Horovod"),
    **dict.fromkeys(("InternalError", "JaxRuntimeError", "XlaRuntimeError"), "hvdtune: "),
}


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for `func(state, …)`: training that starts over when the job has changed.

    If a collective fails (a rank is gone, the job was shut down), the state returns to its last
    commit and `shutdown()` and `init()` join the job anew; if hosts have changed, the current state
    is kept. Then the reset callbacks run, the state becomes that of rank 0, and `func` is called
    again.
    """
    return run_translated(
        func,
        lambda error: (
            (ours := _WRAPPERS.get(type(error).__name__)) is not None and ours in str(error)
        ),
    )
