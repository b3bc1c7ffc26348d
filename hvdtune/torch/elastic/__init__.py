"""Elastic training with PyTorch, `hvd.elastic`: states of models and optimizers, and a sampler.

Knows `hvdtune.elastic`, the face's broadcasts of state, and its optimizers' steps; docs/elastic.md
has an example.
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
