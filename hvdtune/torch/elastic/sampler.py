"""A sampler that can continue in the middle of an epoch, with another number of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from hvdtune.core.world import is_initialized, rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals the indices of ``dataset`` out to the ranks, leaving out those already processed.

    The order is that of ``random.Random(seed + epoch)``, or ascending without ``shuffle``. If the
    number of ranks does not divide the rest, the rest is filled up from its beginning, so that all
    ranks get the same number. Call ``record_batch`` after every batch and ``set_epoch`` at the end
    of an epoch, and make it part of the state: ``TorchState(…, sampler=sampler)``. Raises
    ValueError before ``init()``.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas, self.rank = size(), rank()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``: a new order, nothing processed. Call it at the end of an epoch.

        A call at the beginning of an epoch would forget what was processed before a failure.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every rank has processed batch number ``batch_idx``, of ``batch_size``."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many indices of it all ranks together have processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where ``state_dict()`` was taken, with the current ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal the remaining indices to the current ranks."""
        # After a shutdown, the state is restored before the job is connected again.
        if is_initialized():
            self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        rest = self.remaining_indices
        # A rest shorter than half the number of ranks is repeated more than once.
        padded = [rest[i % len(rest)] for i in range(self.total_size)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
