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

# Errors in which TensorFlow and JAX wrap what a collective in a compiled step raises if its job is
# lost, and what their texts have then: the operation's type, or what XLA's begin with. The name of
# the package alone is in the stack that TensorFlow adds to any error.
_WRAPPERS = {
    **dict.fromkeys(("UnknownError", "AbortedError"), "Horovod"),
    **dict.fromkeys(("InternalError", "JaxRuntimeError", "XlaRuntimeError"), "hvdtune: "),
}


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for `func(state, …)`: training that starts over when the job has changed.

    When a collective fails (a rank is gone, the job was shut down), the state goes back to its last
    commit and the job is joined anew by `shutdown()` and `init()`; when hosts have changed, the
    current state is kept. Then the reset callbacks run, the state is made that of rank 0, and
    `func` is called again.
    """
    return run_translated(
        func,
        lambda error: (
            (ours := _WRAPPERS.get(type(error).__name__)) is not None and ours in str(error)
        ),
    )
