"""Rank programs: Adasum against its formula in float64."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from rank_programs import torch_forms as forms
from rank_programs.torch_cases import FLOATS, error_of, run_checks, same
from support.models.adasum_model import tree

import hvdtune.torch as hvd

SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (2,), (3,), (5, 7), (1000,), (4099,), (3, 0), (33,)),
)
LARGE = (100_003,)
ALLREDUCES = (*forms.ALLREDUCES, *forms.GROUPED_ALLREDUCES)

Make = Callable[[int], torch.Tensor]  # a rank's tensor


def everyone() -> range:
    return range(hvd.size())


def normal(seed: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Make:
    def make(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        # All ranks have something in common, as gradients do.
        own = torch.randn(shape, generator=generator, dtype=torch.float64)
        common = torch.randn(shape, generator=generator.manual_seed(seed), dtype=torch.float64)
        return (own + 0.5 * common).to(dtype)

    return make


def close(got: torch.Tensor, make: Make, what: object, factor: float = 1.0) -> None:
    """Compare with the formula, and the bits with those of all other ranks."""
    inputs = [make(rank).to(torch.float64).numpy() for rank in everyone()]
    expected = tree(inputs) * factor
    assert got.dtype == make(0).dtype
    assert tuple(got.shape) == expected.shape, (what, got.shape, expected.shape)
    # 16-bit types are worked on in float32. What cancels out in a coefficient or a sum is as wrong
    # as the largest term is.
    worked = np.finfo(np.float64 if got.dtype is torch.float64 else np.float32).eps
    stored = torch.finfo(got.dtype).eps
    largest = max((float(np.abs(values).max(initial=0.0)) for values in inputs), default=0.0)
    bound = 0.5001 * stored * np.abs(expected) + 16 * worked * largest * abs(factor)
    bound += torch.finfo(got.dtype).smallest_normal * stored
    wrong = ~(np.abs(got.to(torch.float64).numpy() - expected) <= bound)
    assert not wrong.any(), (what, got[torch.from_numpy(wrong)][:5], expected[wrong][:5])
    if got.numel():
        bits = got.contiguous().view(-1).view(torch.uint8)
        every = hvd.allgather(bits, name="bits").view(hvd.size(), -1)
        assert bool((every == every[0]).all()), (what, "the ranks have different bits")


def every_type_and_shape() -> None:
    for dtype in FLOATS:
        for number, shape in enumerate((*SHAPES, LARGE)):
            make = normal(number, dtype, shape)
            mine = make(hvd.rank())
            what = (dtype, shape)
            close(hvd.allreduce(mine, op=hvd.Adasum, name=f"{what}"), make, what)
            same(mine, make(hvd.rank()), "input changed")


def every_form() -> None:
    for form in ALLREDUCES:
        makes = [normal(1, torch.float32, (17,)), normal(2, torch.float32, (5, 3))]
        for name in (None, "form"):  # the second has a place in the cache from the second form on
            tensors = [make(hvd.rank()) for make in makes]
            result = forms.complete(form, tensors, op=hvd.Adasum, name=name)
            for got, make in zip(
                result if form in forms.GROUPED else [result],
                makes if form in forms.GROUPED else makes[-1:],
                strict=True,
            ):
                close(got, make, (form, name))
            if form.endswith("_"):
                close(tensors[-1], makes[-1], (form, name, "in place"))


def fused_tensors() -> None:
    """Tensors that travel together keep their own coefficients, whatever their sizes and order."""
    for dtype in FLOATS:
        makes = [normal(n, dtype, (1 + (n * n * 37) % 4001,)) for n in range(40)]
        order = np.random.default_rng(hvd.rank()).permutation(len(makes))
        for _ in range(2):
            handles = {
                int(n): hvd.allreduce_async(makes[n](hvd.rank()), op=hvd.Adasum, name=f"fused.{n}")
                for n in order
            }
            for n, make in enumerate(makes):
                close(hvd.synchronize(handles[n]), make, ("fused", dtype, n))


def group_of_types() -> None:
    members: list[tuple[torch.dtype, tuple[int, ...]]] = [
        *((torch.float32, (n,)) for n in (1, 100, 0, 33)),
        *((torch.float16, (n,)) for n in (3, 1001)),
        (torch.float64, ()),
        (torch.float32, (20_011,)),
    ]
    makes = [normal(n, *member) for n, member in enumerate(members)]
    group = hvd.grouped_allreduce([make(hvd.rank()) for make in makes], op=hvd.Adasum)
    for got, make, member in zip(group, makes, members, strict=True):
        close(got, make, ("group", member))


def orthogonal_tensors_add_up() -> None:
    for dtype in FLOATS:

        def make(rank: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            tensor = torch.zeros(8 * hvd.size() + 3)
            tensor[rank :: hvd.size()][:8] = rank + 1.0
            return tensor.to(dtype)

        result = hvd.allreduce(make(hvd.rank()), op=hvd.Adasum)
        total = sum(make(rank).double() for rank in everyone())
        same(result, total.to(dtype), dtype)


def parallel_tensors_average() -> None:
    for dtype in FLOATS:
        mine = torch.tensor([1.0, -2.0, 4.0, 0.0]).to(dtype)
        same(hvd.allreduce(mine, op=hvd.Adasum), mine, ("equal", dtype))
        # Of two ranks: x and 3x give 2x. Of four: the averages of pairs, again.
        result = hvd.allreduce(mine * (1 + 2 * (hvd.rank() % 2)), op=hvd.Adasum)
        same(result, mine * 2, ("multiples", dtype))
        # Opposite ones are parallel, too.
        opposite = hvd.allreduce(mine * (-1) ** hvd.rank(), op=hvd.Adasum)
        same(opposite.abs(), torch.zeros_like(mine), ("opposite", dtype))


def zeros() -> None:
    for dtype in FLOATS:
        nothing = torch.zeros(5, dtype=dtype)
        same(hvd.allreduce(nothing, op=hvd.Adasum), nothing, ("all", dtype))
        for lonely in everyone():
            values = torch.tensor([1.0, 0.0, -3.0, 0.5, 2.0], dtype=dtype)
            mine = values if hvd.rank() == lonely else nothing
            same(hvd.allreduce(mine, op=hvd.Adasum), values, ("one", lonely, dtype))


def magnitudes() -> None:
    """Ranks whose gradients differ by orders of magnitude, and norms near the ends of the range."""
    for dtype, scales in {
        torch.float16: (1e-4, 1.0, 100.0, 3e4),
        torch.bfloat16: (1e-30, 1.0, 1e10, 1e30),
        torch.float32: (1e-30, 1.0, 1e10, 1e30),
        torch.float64: (1e-120, 1e-80, 1.0, 1e140),
    }.items():
        for turn in range(len(scales)):
            base = normal(turn, torch.float64, (37,))

            def make(
                rank: int, turn: int = turn, base: Make = base, dtype: torch.dtype = dtype,
                scales: tuple[float, ...] = scales,
            ) -> torch.Tensor:  # fmt: skip
                unit = base(rank) / base(rank).abs().max()
                return (unit * scales[(rank + turn) % len(scales)]).to(dtype)

            close(hvd.allreduce(make(hvd.rank()), op=hvd.Adasum), make, (dtype, turn))
        for scale in scales:  # the same on all ranks
            base = normal(9, torch.float64, (5,))
            smaller = scale / 16  # so that no sum overflows

            def make_all(
                rank: int, base: Make = base, dtype: torch.dtype = dtype, scale: float = smaller
            ) -> torch.Tensor:
                return (base(rank) * scale).to(dtype)

            close(hvd.allreduce(make_all(hvd.rank()), op=hvd.Adasum), make_all, (dtype, scale))


def factors() -> None:
    """Powers of two: prescaling all tensors by f scales the result by f."""
    for dtype in FLOATS:
        make = normal(3, dtype, (1001,))
        result = hvd.allreduce(
            make(hvd.rank()), op=hvd.Adasum, prescale_factor=0.5, postscale_factor=8.0
        )
        close(result, make, dtype, factor=4.0)


def same_bits_again() -> None:
    """Another name, another company, the same bits."""
    make = normal(5, torch.float32, LARGE)
    first = hvd.allreduce(make(hvd.rank()), op=hvd.Adasum, name="bits.0")
    for _ in range(3):
        again = hvd.allreduce(make(hvd.rank()), op=hvd.Adasum, name="bits.0")
        assert torch.equal(first, again)


def gradient() -> None:
    """Adasum of the gradients."""
    make = normal(6, torch.float64, (3, 2))
    tensor = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Adasum).backward(make(hvd.rank()))
    assert tensor.grad is not None
    close(tensor.grad, make, "gradient")


def compressed() -> None:
    make = normal(7, torch.float32, (101,))
    result = hvd.allreduce(make(hvd.rank()), op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert result.dtype is torch.float32
    close(result.half(), lambda rank: make(rank).half(), "fp16")


def joined_ranks_give_zeros() -> None:
    for joined in everyone():
        base = normal(8, torch.float32, (33,))

        def make(rank: int, joined: int = joined, base: Make = base) -> torch.Tensor:
            return torch.zeros(33) if rank == joined else base(rank)

        result = torch.zeros(33)
        if hvd.rank() != joined:
            result = hvd.allreduce(make(hvd.rank()), op=hvd.Adasum, name="while one has joined")
        hvd.join()
        # The one that had joined gets it from another.
        result = result if hvd.rank() != joined else torch.full((33,), -torch.inf)
        close(hvd.allreduce(result, op=hvd.Max, name="largest"), make, joined)


def mistakes() -> None:
    for form in ALLREDUCES:
        error_of(
            lambda f=form: forms.call(f, forms.ones(), op=hvd.Adasum, process_set=all_but[0]),
            NotImplementedError,
            "Adasum",
            "process set",
        )
        for dtype in (torch.int32, torch.int64, torch.uint8, torch.bool):
            tensors = [torch.ones(2), torch.ones(3, dtype=dtype)]
            text = error_of(
                lambda f=form, t=tensors: forms.complete(f, t, op=hvd.Adasum, name="whole"),
                hvd.HorovodInternalError,
                "Unsupported data type",
                str(dtype).removeprefix("torch."),
            )
            assert f"{forms.family(form)}.whole" in text
        for odd in everyone():
            op = hvd.Sum if hvd.rank() == odd else hvd.Adasum
            text = error_of(
                lambda f=form, o=op: forms.complete(f, forms.ones(), op=o, name="mixed"),
                hvd.HorovodInternalError,
                "Mismatched operations",
                "ADASUM",
                "ALLREDUCE",
            )
            assert f"{forms.family(form)}.mixed" in text
            assert f"rank {odd or 1} has" in text
        make = normal(4, torch.float32, (6, 2))
        result = forms.complete(form, [make(hvd.rank())], op=hvd.Adasum, name="mixed")
        close(result[0] if form in forms.GROUPED else result, make, (form, "after the mistakes"))
    for form in forms.FORMS:
        forms.complete(form, forms.ones(4), name="afterwards")


all_but: dict[int, hvd.ProcessSet] = {}


def run() -> list[str]:
    size = int(os.environ["HOROVOD_SIZE"])
    for joined in range(size):
        all_but[joined] = hvd.ProcessSet([rank for rank in range(size) if rank != joined])
    hvd.init(process_sets=list(all_but.values()))
    return run_checks(
        every_type_and_shape,
        every_form,
        fused_tensors,
        group_of_types,
        orthogonal_tensors_add_up,
        parallel_tensors_average,
        zeros,
        magnitudes,
        factors,
        same_bits_again,
        gradient,
        compressed,
        joined_ranks_give_zeros,
        mistakes,
    )
