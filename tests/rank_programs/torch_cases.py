"""What the torch rank programs share: inputs that every rank can foresee, and running checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch

import hvdtune.torch as hvd

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# uint16 came to torch later than the oldest version that is supported.
UNSIGNED = tuple(getattr(torch, name) for name in ("uint16",) if hasattr(torch, name))
ALL = (*FLOATS, *INTEGERS, *UNSIGNED, torch.bool)

EXACT = torch.float64  # holds every input and result of these tests exactly


def rank_input(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Small integers, different on every rank: sums and products are exact in every type."""
    low = -3 if dtype.is_signed else 0
    generator = torch.Generator().manual_seed(1000 * rank + sum(shape))
    high = 2 if dtype is torch.bool else 4
    return torch.randint(low if high > 2 else 0, high, shape, generator=generator).to(dtype)


def inputs(dtype: torch.dtype, shape: tuple[int, ...], ranks: Iterable[int]) -> torch.Tensor:
    """The inputs of ``ranks`` stacked, in float64."""
    return torch.stack([rank_input(rank, dtype, shape).to(EXACT) for rank in ranks])


def mine(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """This rank's input."""
    return rank_input(hvd.rank(), dtype, shape)


def reduced(stacked: torch.Tensor, op: int, dtype: torch.dtype) -> torch.Tensor:
    """The reduction over the first dimension, as it should come out in ``dtype``."""
    if op == hvd.Average:
        mean = stacked.sum(0) * (1.0 / len(stacked))
        result = mean if dtype.is_floating_point else mean.trunc()
    elif op == hvd.Sum:
        result = stacked.sum(0)
    elif op == hvd.Product:
        result = stacked.prod(0)
    else:
        result = stacked.amin(0) if op == hvd.Min else stacked.amax(0)
    return result.to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Fail unless type, shape and values agree (to the type's precision)."""
    assert got.dtype == expected.dtype, (what, got.dtype, expected.dtype)
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    tolerance = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    close = torch.isclose(got.to(EXACT), expected.to(EXACT), rtol=2 * tolerance, atol=0.0)
    assert bool(close.all()), (what, got, expected)


def error_of(call: Callable[[], object], kind: type[Exception], *fragments: str) -> str:
    """The text of the error that ``call`` raises; fail without one, or without the fragments."""
    with pytest.raises(kind) as caught:
        call()
    text, raised = str(caught.value), caught.type
    # It refers to this frame, and so to itself and the call: an optimizer would live on in it.
    del caught
    assert raised is kind, f"{raised.__name__} instead of {kind.__name__}: {text}"
    for fragment in fragments:
        assert fragment in text, f"{fragment!r} is not in: {text}"
    return text


def run_checks(*checks: Callable[[], None]) -> list[str]:
    """Run the checks one after the other on all ranks; the names of those that ran.

    The first that fails ends this rank, and with it the job: the ranks are out of step then.
    """
    names = []
    for check in checks:
        print(check.__name__, flush=True)
        check()
        hvd.barrier()
        names.append(check.__name__)
    return names
