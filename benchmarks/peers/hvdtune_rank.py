"""One rank of hvdtune, through its PyTorch interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import rank_loop
import torch

import hvdtune.torch as hvd


class Hvdtune:
    """Blocking in-place allreduce; a step submits every tensor in order, then waits for all."""

    def __init__(self) -> None:
        hvd.init()
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self._number = torch.zeros(1, dtype=torch.float64)

    def single(self, tensor: Any) -> Callable[[], Any]:
        name = f"array.{tensor.numel()}"
        return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name)

    def step(self, tensors: list[Any]) -> Callable[[], Any]:
        named = [(f"set.{len(tensors)}.{at}", tensor) for at, tensor in enumerate(tensors)]

        def step() -> None:
            handles = [
                hvd.allreduce_async_(tensor, op=hvd.Sum, name=name) for name, tensor in named
            ]
            for handle in handles:
                hvd.synchronize(handle)

        return step

    def slowest(self, value: float) -> float:
        self._number[0] = value
        return float(hvd.allreduce(self._number, op=hvd.Max, name="slowest")[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank_loop.run(Hvdtune(), sys.argv[1:])
    hvd.shutdown()
