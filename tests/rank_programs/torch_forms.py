"""Every torch collective in every form, called the same way: what the rank programs loop over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hvdtune.torch as hvd

ALLREDUCES = ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_")
BROADCASTS = ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_")
ALLGATHERS = ("allgather", "allgather_async")
ALLTOALLS = ("alltoall", "alltoall_async")
REDUCESCATTERS = ("reducescatter", "reducescatter_async")
GROUPED_ALLREDUCES = tuple(f"grouped_{form}" for form in ALLREDUCES)
GROUPED_ALLGATHERS = tuple(f"grouped_{form}" for form in ALLGATHERS)
GROUPED_REDUCESCATTERS = tuple(f"grouped_{form}" for form in REDUCESCATTERS)

GROUPED = (*GROUPED_ALLREDUCES, *GROUPED_ALLGATHERS, *GROUPED_REDUCESCATTERS)
REDUCING = (*ALLREDUCES, *GROUPED_ALLREDUCES, *REDUCESCATTERS, *GROUPED_REDUCESCATTERS)
GATHERING = (*ALLGATHERS, *GROUPED_ALLGATHERS)
FORMS = (*REDUCING, *GATHERING, *BROADCASTS, *ALLTOALLS)
ASYNCHRONOUS = tuple(form for form in FORMS if "_async" in form)


def family(form: str) -> str:
    """The operation without its form: "grouped_allreduce" of "grouped_allreduce_async_"."""
    return form.rstrip("_").removesuffix("_async")


def call(form: str, tensors: Any | Sequence[Any], **arguments: Any) -> Any:
    """Call a form with ``tensors`` (single forms take the last of them); the function's result.

    Sum where there is an operator, and the set's first rank as the root, unless given.
    """
    if form in REDUCING and "average" not in arguments:
        arguments.setdefault("op", hvd.Sum)
    if form in BROADCASTS and "root_rank" not in arguments:
        process_set = arguments.get("process_set", hvd.global_process_set)
        arguments["root_rank"] = (process_set.ranks or [0])[0]
    return getattr(hvd, form)(tensors if form in GROUPED else tensors[-1], **arguments)


def complete(form: str, tensors: Sequence[Any], **arguments: Any) -> Any:
    """``call``, and wait for the result of asynchronous forms."""
    result = call(form, tensors, **arguments)
    return hvd.synchronize(result) if form in ASYNCHRONOUS else result


def ones(rows: int = 6) -> list[torch.Tensor]:
    """Tensors that every form takes at up to 3 ranks."""
    return [torch.ones(rows), torch.ones(rows, 2)]
