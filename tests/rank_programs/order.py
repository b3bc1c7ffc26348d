"""Rank program: many tensors a step, submitted and awaited in another order on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import hvdtune as hvd

TENSORS = 200
DTYPES = ("float32", "float32", "float64", "int32", "int64", "float16")


@dataclass
class Tensor:
    name: str
    kind: str
    mine: np.ndarray  # what this rank submits; rewritten every step
    pattern: np.ndarray  # small integers, so that every sum is exact in every type

    def expected(self, step: int, size: int) -> np.ndarray:
        """What every rank must get in this step."""
        ranks = range(size)
        shift = step % 89
        if self.kind == "allreduce":
            return self.pattern * size + (shift * size + sum(ranks))
        if self.kind == "broadcast":
            return self.pattern + (shift + step % size)
        return np.concatenate([self.pattern + (shift + rank) for rank in ranks])

    def submit(self, step: int, rank: int, size: int) -> int:
        np.copyto(self.mine, self.pattern + (step % 89 + rank), casting="unsafe")
        if self.kind == "allreduce":
            return hvd.allreduce_async_(self.mine, op=hvd.Sum, name=self.name)
        if self.kind == "broadcast":
            return hvd.broadcast_async_(self.mine, step % size, name=self.name)
        return hvd.allgather_async(self.mine, name=self.name)


def make_tensors() -> list[Tensor]:
    """The same tensors on every rank: many small ones, a few large, some empty."""
    random = np.random.default_rng(7)
    tensors = []
    for index in range(TENSORS):
        kind = "broadcast" if index % 20 == 3 else "allgather" if index % 20 == 7 else "allreduce"
        count = int(random.choice([0, 1, 3, 64, 500, 20_000], p=[0.02, 0.2, 0.2, 0.3, 0.26, 0.02]))
        pattern = random.integers(0, 100, count)
        mine = np.empty(count, DTYPES[index % len(DTYPES)])
        tensors.append(Tensor(f"tensor.{index}", kind, mine, pattern))
    return tensors


def run_steps(steps: int) -> list[str]:
    """Run the steps; returns one line for every wrong result, at most 20."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    tensors = make_tensors()
    order = np.random.default_rng((rank, 99))
    faults: list[str] = []
    for step in range(steps):
        handles = {i: tensors[i].submit(step, rank, size) for i in order.permutation(TENSORS)}
        for i in order.permutation(TENSORS):
            got = hvd.synchronize(handles[i])
            if not np.array_equal(got, tensors[i].expected(step, size)) and len(faults) < 20:
                faults.append(f"step {step}: {tensors[i].kind} {tensors[i].name} is wrong")
    hvd.shutdown()
    return faults
