"""Describes the optimizer in the recording, so that advice fits what the program already does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hvdtune.core.observation import marks
from hvdtune.torch.compression import Compression

if TYPE_CHECKING:
    import torch

    from hvdtune.torch.optimizer.reducer import GradientReducer


def tell(reducer: GradientReducer, optimizer: torch.optim.Optimizer) -> None:
    """Tell the recording, now and then, how gradients are reduced and how they are used."""
    if marks.is_time_to_describe():
        settings = reducer.settings
        compression = settings.compression
        described = {
            "optimizer": "DistributedOptimizer",
            "groups": any(member.unit.grouped for member in reducer.members.values()),
            "compression": ""
            if compression is Compression.none
            else getattr(compression, "__name__", type(compression).__name__),
            "passes": reducer.passes,
            "views": settings.views,
            "update": _update(optimizer),
            "fused": any(group.get("fused") for group in optimizer.param_groups),
        }
        marks.record(marks.PROGRAM, 0, json.dumps(described))


def _update(optimizer: torch.optim.Optimizer) -> str:
    """The optimizer's class, or its nearest base class, in torch.optim; "" if there is none."""
    every = [one for one in type(optimizer).__mro__ if one.__module__.startswith("torch.optim.")]
    return every[0].__name__ if len(every) > 1 else ""  # the last is Optimizer
