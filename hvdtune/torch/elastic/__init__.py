"""Elastic training with PyTorch: ``hvd.elastic``.

state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0)

@hvd.elastic.run
def train(state):
    ...
    state.commit()

train(state)
"""

from __future__ import annotations

from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.elastic import ObjectState, State, run
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
