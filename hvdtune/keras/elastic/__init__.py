"""Elastic training with Keras: `hvd.elastic`.

state = hvd.elastic.KerasState(model, epoch=0, batch=0)

@hvd.elastic.run
def train(state):
    model.fit(..., epochs=epochs - state.epoch, callbacks=[
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ])

train(state)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdtune import elastic
from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.elastic import ObjectState, State
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

# Errors in which TensorFlow and JAX wrap what a collective in a compiled step raises, and what its
# text has: the operation's type, or what XLA's begins with. The package's name alone is in the
# stack that TensorFlow adds to any error.
_WRAPPERS = ("UnknownError", "AbortedError", "JaxRuntimeError", "XlaRuntimeError")
_OURS = ("Horovod", "hvdtune: ")


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for `func(state, …)`: training that starts over when the job has changed.

    When a collective fails (a rank is gone, the job was shut down), the state goes back to its last
    commit and the job is joined anew by `shutdown()` and `init()`; when hosts have changed, the
    current state is kept. Then the reset callbacks run, the state is made that of rank 0, and
    `func` is called again.
    """

    return elastic.run(
        func,
        lambda error: (
            type(error).__name__ in _WRAPPERS and any(ours in str(error) for ours in _OURS)
        ),
    )
