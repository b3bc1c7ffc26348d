"""Checks of the arguments that several collectives share: reduction operator, factors, splits."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.reduce_ops import Adasum, Average, Max, Min, Product, Sum

_ALLREDUCE_OPS = (Average, Sum, Min, Max, Product)


def allreduce_op(op: int | None, average: bool | None) -> int:
    """The operator that ``op`` and the deprecated ``average`` ask for; Average when neither is set.

    Raises ValueError when both are set or ``op`` is none of the operators, NotImplementedError for
    Adasum.
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average; provide only one of them.")
        warnings.warn(
            "The parameter average is deprecated; use op=Average or op=Sum.",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    if op is None:
        return Average
    if op == Adasum:
        raise NotImplementedError(
            "op=Adasum is not supported by this version of hvdtune; "
            "use Average, Sum, Min, Max or Product."
        )
    if op not in _ALLREDUCE_OPS:
        raise ValueError(f"op={op!r} is no reduction; use Average, Sum, Min, Max or Product.")
    return op


def reducescatter_op(op: int) -> int:
    """``op`` itself. Raises HorovodInternalError, as Horovod does, unless it is Average or Sum."""
    if op not in (Average, Sum):
        raise HorovodInternalError(f"reducescatter only supports AVERAGE and SUM, not op={op!r}.")
    return op


def check_truth_values(
    tensors: Iterable[torch.Tensor], op: int, prescale_factor: float, postscale_factor: float
) -> None:
    """Raise ValueError when a bool tensor is to be averaged or scaled."""
    if op != Average and prescale_factor == 1.0 and postscale_factor == 1.0:
        return
    if any(getattr(tensor, "dtype", None) is torch.bool for tensor in tensors):
        raise ValueError(
            "Tensor type torch.BoolTensor is not supported for Average or scale factors; "
            "use op=Sum (or), Product (and), Min or Max without factors."
        )


def check_rows(tensor: Any, operation: str, fragment: str) -> None:
    """Raise ValueError for a 0-d tensor, which has no first dimension to cut or to join."""
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        raise ValueError(
            f"{operation} {fragment}: it works on the first dimension, and the shape is (). "
            "Use tensor.reshape(1)."
        )


def split_sizes(splits: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    """The rows for every receiver as a list. Raises ValueError unless 1-D and of 32-bit integers.

    Their number and sum are checked by the engine, which knows the process set.
    """
    if splits is None:
        return None
    if not isinstance(splits, torch.Tensor):
        splits = torch.as_tensor(splits)
        # Python integers have no width; those that fit are 32-bit integers here.
        if splits.numel() == 0 or splits.dtype is torch.int64:
            if any(abs(n) >= 2**31 for n in splits.flatten().tolist()):
                raise ValueError("alltoall takes splits of 32-bit integer type; one is too large.")
            splits = splits.to(torch.int32)
    if splits.dim() != 1:
        raise ValueError(
            f"alltoall takes a 1D splits tensor, not one of shape {tuple(splits.shape)}."
        )
    if splits.dtype is not torch.int32:
        raise ValueError(f"alltoall takes splits of 32-bit integer type, not {splits.dtype}.")
    return splits.tolist()
