"""Lets torchmetrics' metrics gather their states over hvdtune's ranks.

By themselves they only know torch.distributed, which is not running here: each rank would compute
its metric over its own part of the data.
"""

from __future__ import annotations

from typing import Any

import torch
from torchmetrics import Metric

import hvdtune.torch as hvd


def gather_states(state: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """``state`` of every rank, in rank order; shapes may differ, numbers of dimensions not."""
    dense = state.detach().contiguous()
    shape = torch.tensor([[*dense.shape]], dtype=torch.int64, device="cpu")
    shapes = hvd.allgather(shape, name="lightning.metric.shape")
    values = hvd.allgather(dense.reshape(-1), name="lightning.metric.state")
    parts = values.split([int(shape.prod()) for shape in shapes])
    return [part.reshape(tuple(shape.tolist())) for part, shape in zip(parts, shapes, strict=True)]


def _more_than_one() -> bool:
    return hvd.is_initialized() and hvd.size() > 1


def connect_metrics(model: torch.nn.Module) -> None:
    """Make every metric of ``model`` gather its states here, unless it has its own function."""
    for metric in model.modules():
        if isinstance(metric, Metric) and metric.dist_sync_fn is None:
            metric.dist_sync_fn = gather_states
            metric.distributed_available_fn = _more_than_one
