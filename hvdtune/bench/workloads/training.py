"""Endless steps of one gradient set: `main([WORKLOAD])` on each rank, for `hvdtune tune`.

A step makes the allreduces of one training step of the model: it submits every tensor in backward
order, then waits for all. The steps end with the process.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from hvdtune.bench.workloads.gradient_sets import WORKLOADS, Workload


def main(arguments: Sequence[str]) -> int:
    """Step until the engine or the process ends; return the exit status."""
    import hvdtune as hvd
    from hvdtune.core.exceptions import HorovodInternalError

    [key] = arguments
    try:
        hvd.init()
        tensors = _tensors(WORKLOADS[key])
        while True:
            _step(hvd, tensors)
    except (HorovodInternalError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def _tensors(workload: Workload) -> list[tuple[str, Any]]:
    import numpy as np

    flat = np.ones(workload.elements(), np.float32)
    tensors = []
    offset = 0
    for name, shape in workload.backward_order():
        size = math.prod(shape)
        tensors.append((f"bench.{workload.key}.{name}", flat[offset : offset + size]))
        offset += size
    return tensors


def _step(hvd: Any, tensors: list[tuple[str, Any]]) -> None:
    # Averages, so that the values do not grow with the number of steps.
    handles = [hvd.allreduce_async_(tensor, op=hvd.Average, name=name) for name, tensor in tensors]
    for handle in reversed(handles):
        hvd.synchronize(handle)
