"""Elastic training with PyTorch: ``hvd.elastic``.

state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0)

@hvd.elastic.run
def train(state):
    ...
    state.commit()

train(state)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.core.job import init, shutdown
from hvdtune.elastic import ObjectState, State, run_fn
from hvdtune.torch.elastic.sampler import ElasticSampler
from hvdtune.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for ``func(state, …)``: training that starts over when the job has changed.

    When a collective fails (a rank is gone, ranks disagree, the job was shut down), the state goes
    back to its last commit and the job is joined anew by ``shutdown()`` and ``init()``; when hosts
    have changed, the current state is kept. Then the reset callbacks run, the state is made that of
    rank 0, and ``func`` is called again. Only what is in the state survives.
    """
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
