"""A model's gradients (ResNet-50's) reduced three ways, taking turns in one job: one rank of it.

    hvdtune run -np 2 --share-gpu python benchmarks/gpu/steps.py --device cuda --result FILE

`hvdtune`: every tensor is submitted in backward order, then all are waited for. `per tensor`: one
all_reduce of torch.distributed (NCCL; gloo on the CPU) for each. `buckets`: tensors are copied into
buckets of DistributedDataParallel's sizes (1 MiB, then 25 MiB), an all_reduce of each, and copied
back. Times are those of the slowest rank, from the first submission until the GPU has finished;
host times are CPU seconds of the calling thread and of the whole process.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import hvdtune.torch as hvd
from hvdtune.bench.workloads.gradient_sets import WORKLOADS

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
WARM_UPS = 3


class Ways:
    """The three ways, on tensors of their own."""

    def __init__(self, device: torch.device, workload: str) -> None:
        self.device = device
        shapes = WORKLOADS[workload].backward_order()
        self.names = [name for name, _ in shapes]
        self.tensors = [torch.ones(math.prod(shape), device=device) for _, shape in shapes]
        self.buckets = list(self._buckets())

    def _buckets(self):
        """(bucket, the tensors in it, their places in it)."""
        members: list[torch.Tensor] = []
        limit = FIRST_BUCKET
        for at, tensor in enumerate(self.tensors):
            members.append(tensor)
            if 4 * sum(one.numel() for one in members) >= limit or at == len(self.tensors) - 1:
                flat = torch.empty(sum(one.numel() for one in members), device=self.device)
                places = list(flat.split([one.numel() for one in members]))
                yield flat, members, places
                members, limit = [], BUCKET

    def hvdtune(self) -> None:
        """In the way of DistributedOptimizer."""
        handles = [
            hvd.allreduce_async_(tensor, op=hvd.Average, name=name)
            for name, tensor in zip(self.names, self.tensors, strict=True)
        ]
        for handle in reversed(handles):
            hvd.synchronize(handle)

    def per_tensor(self) -> None:
        """One operation a tensor."""
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in self.tensors]:
            work.wait()
        torch._foreach_div_(self.tensors, float(dist.get_world_size()))

    def bucketed(self) -> None:
        """In the way of DistributedDataParallel."""
        works = []
        for flat, members, places in self.buckets:
            torch._foreach_copy_(places, members)
            works.append(dist.all_reduce(flat, async_op=True))
        for work, (flat, members, places) in zip(works, self.buckets, strict=True):
            work.wait()
            flat.div_(dist.get_world_size())
            torch._foreach_copy_(members, places)

    def finish(self) -> None:
        """Wait until the GPU has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wrong(self) -> bool:
        """Whether an average of ones is not one."""
        return any(not bool((tensor == 1).all()) for tensor in self.tensors)


def slowest(values: list[float]) -> list[float]:
    """The largest value of all ranks, for each element."""
    found = hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Max, name="slowest")
    return [float(value) for value in found]


def timed(way: Callable[[], None], finish: Callable[[], None], steps: int) -> dict[str, float]:
    """Seconds a step: of the job, of the calling thread, of the process."""
    hvd.barrier()
    begin, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(steps):
        way()
    finish()
    ends = time.perf_counter() - begin, time.thread_time() - thread, time.process_time() - process
    found = slowest([end / steps for end in ends])
    return dict(zip(("step_s", "thread_s", "process_s"), found, strict=True))


def main() -> int:
    """Run as a rank; rank 0 writes medians over the rounds by way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=("hvdtune",), help="leave torch.distributed out")
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="resnet50")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="of each way in a round")
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    hvd.init()
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    ways = Ways(device, args.workload)
    chosen: dict[str, Callable[[], None]] = {"hvdtune": ways.hvdtune}
    if not args.only:
        backend = "nccl" if args.device == "cuda" else "gloo"
        dist.init_process_group(backend, rank=hvd.rank(), world_size=hvd.size())
        chosen |= {"per tensor": ways.per_tensor, "buckets": ways.bucketed}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for name, way in chosen.items():
        timed(way, ways.finish, WARM_UPS)
        if ways.wrong():
            print(f"{name}: wrong averages on rank {hvd.rank()}", file=sys.stderr)
            return 1
    for _ in range(args.rounds):
        for name, way in chosen.items():
            rounds[name].append(timed(way, ways.finish, args.steps))
    if hvd.rank() == 0:
        medians = {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in rounds.items()
        }
        args.result.write_text(json.dumps(medians))
    if not args.only:
        dist.destroy_process_group()
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
