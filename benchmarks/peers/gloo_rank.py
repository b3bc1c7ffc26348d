"""One rank of torch.distributed with gloo, given by RANK, WORLD_SIZE and MASTER_*.

HVDTUNE_COMPARE_STEP says how a training step's tensors are reduced, see gloo_steps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import gloo_steps
import rank_loop
import torch
import torch.distributed as dist


class Gloo:
    """Blocking all_reduce."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()

    def single(self, tensor: Any) -> Callable[[], Any]:
        return lambda: dist.all_reduce(tensor)

    def step(self, tensors: list[Any]) -> Callable[[], Any]:
        return gloo_steps.STEPS[os.environ["HVDTUNE_COMPARE_STEP"]](tensors)

    def slowest(self, value: float) -> float:
        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return float(number[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank_loop.run(Gloo(), sys.argv[1:])
    dist.destroy_process_group()
