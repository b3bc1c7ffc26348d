"""A training step's tensors through torch.distributed: in buckets made by hand, or one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

BUCKET_BYTES = 25 << 20


def bucket_step(tensors: list[Any]) -> Callable[[], None]:
    """A step in buckets, allocated once: a full bucket is reduced while the next is packed."""
    buckets: list[list[Any]] = [[]]
    filled = 0
    for tensor in tensors:
        if buckets[-1] and filled + tensor.nbytes > BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.nbytes
    planned = []
    for members in buckets:
        flat = torch.zeros(sum(member.numel() for member in members))
        views = torch.split(flat, [member.numel() for member in members])
        shaped = [view.view(member.shape) for view, member in zip(views, members, strict=True)]
        planned.append((members, flat, shaped))

    def step() -> None:
        works = []
        for members, flat, views in planned:
            torch._foreach_copy_(views, members)
            works.append(dist.all_reduce(flat, async_op=True))
        for work, (members, _, views) in zip(works, planned, strict=True):
            work.wait()
            torch._foreach_copy_(members, views)

    return step


def single_step(tensors: list[Any]) -> Callable[[], None]:
    """A step in which every tensor is reduced by itself."""

    def step() -> None:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    return step


STEPS = {"in buckets of 25 MB": bucket_step, "one by one": single_step}
