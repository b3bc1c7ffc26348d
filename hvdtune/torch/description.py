"""What a recording says of the optimizer, so that advice fits what the program does already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hvdtune.core import marks
from hvdtune.torch.compression import Compression

if TYPE_CHECKING:
    from hvdtune.torch.reducer import GradientReducer


def tell(reducer: GradientReducer) -> None:
    """Tell the recording, once in a while, how gradients are reduced."""
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
        }
        marks.record(marks.PROGRAM, 0, json.dumps(described))
