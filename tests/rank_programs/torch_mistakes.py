"""Rank programs: wrong use of the torch collectives. The engine must work after each mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rank_programs.torch_cases import error_of, run_checks, same

import hvdtune.torch as hvd

Call = Callable[[], Any]


def check_alive() -> None:
    same(
        hvd.allreduce(torch.ones(3), op=hvd.Sum, name="alive"),
        torch.full((3,), float(hvd.size())),
        "alive",
    )


def forms_of(tensor: torch.Tensor) -> dict[str, Call]:
    """Every operation on ``tensor``, alone and as the second member of a group."""
    good = torch.ones(hvd.size())
    return {
        "allreduce": lambda: hvd.allreduce(tensor, op=hvd.Sum),
        "allreduce_": lambda: hvd.allreduce_(tensor, op=hvd.Sum),
        "allreduce_async": lambda: hvd.allreduce_async(tensor, op=hvd.Sum),
        "allgather": lambda: hvd.allgather(tensor),
        "broadcast": lambda: hvd.broadcast(tensor, 0),
        "broadcast_": lambda: hvd.broadcast_(tensor, 0),
        "alltoall": lambda: hvd.alltoall(tensor),
        "reducescatter": lambda: hvd.reducescatter(tensor, op=hvd.Sum),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([good, tensor], op=hvd.Sum),
        "grouped_allreduce_": lambda: hvd.grouped_allreduce_([good, tensor], op=hvd.Sum),
        "grouped_allgather": lambda: hvd.grouped_allgather([good, tensor]),
        "grouped_reducescatter": lambda: hvd.grouped_reducescatter([good, tensor], op=hvd.Sum),
    }


def refused_everywhere(tensor: Any, kind: type[Exception], *fragments: str) -> None:
    for name, call in forms_of(tensor).items():
        member = ("Member 1 of the group",) if name.startswith("grouped") else ()
        error_of(call, kind, name.rstrip("_").removesuffix("_async"), *fragments, *member)
    check_alive()


def strided() -> None:
    refused_everywhere(torch.ones(4, 6).t(), ValueError, "required to be contiguous", "(6, 4)")


def unsupported_types() -> None:
    refused_everywhere(
        torch.ones(6, dtype=torch.complex64),
        ValueError,
        "Tensor type torch.ComplexFloatTensor is not supported.",
    )


def sparse_tensors() -> None:
    refused_everywhere(torch.ones(6).to_sparse(), ValueError, "is not supported", "sparse")


def other_devices() -> None:
    # A tensor on the meta device stands for one on a GPU: it has no memory here either.
    refused_everywhere(torch.ones(6, device="meta"), ValueError, "meta", "tensor.cpu()", "GPU")


def no_tensors() -> None:
    refused_everywhere([1.0, 2.0], TypeError, "list")


def scalars() -> None:
    scalar = torch.tensor(1.0)
    for call in (
        lambda: hvd.allgather(scalar),
        lambda: hvd.allgather_async(scalar),
        lambda: hvd.grouped_allgather([torch.ones(1), scalar]),
    ):
        error_of(call, ValueError, "rank-zero tensor")
    for call in (lambda: hvd.alltoall(scalar), lambda: hvd.alltoall_async(scalar, [1])):
        error_of(call, ValueError, "scalar")
    for call in (
        lambda: hvd.reducescatter(scalar),
        lambda: hvd.grouped_reducescatter([torch.ones(2), scalar]),
    ):
        error_of(call, ValueError, "does not support scalar")
    check_alive()


def truth_values() -> None:
    truths = torch.tensor([True, False])
    for call in (
        lambda: hvd.allreduce(truths),
        lambda: hvd.allreduce(truths, op=hvd.Sum, prescale_factor=0.5),
        lambda: hvd.allreduce_(truths, op=hvd.Max, postscale_factor=2.0),
        lambda: hvd.grouped_allreduce([torch.ones(2), truths]),
    ):
        error_of(call, ValueError, "bool")
    check_alive()


def reductions() -> None:
    ones = torch.ones(4)
    error_of(lambda: hvd.allreduce(ones, op=hvd.Adasum), NotImplementedError, "Adasum")
    error_of(lambda: hvd.allreduce(ones, op=17), ValueError, "17")
    for op in (hvd.Min, hvd.Max, hvd.Product):
        for call in (
            lambda op=op: hvd.reducescatter(ones, op=op),
            lambda op=op: hvd.grouped_reducescatter([ones], op=op),
        ):
            error_of(call, hvd.HorovodInternalError, "only supports AVERAGE and SUM")
    error_of(
        lambda: hvd.grouped_allreduce([ones], average=True, op=hvd.Sum),
        ValueError,
        "op parameter supersedes average",
    )
    error_of(lambda: hvd.grouped_allreduce(ones), ValueError, "list of tensors")
    check_alive()


def splits() -> None:
    rows = torch.ones(2 * hvd.size() + 1, 2)
    fitting = [2] * hvd.size()
    for wrong, fragment in (
        (None, "splits not provided"),
        ([3] * hvd.size(), "Sum of splits entries is greater"),
        ([1], "Number of entries in splits"),
        (torch.tensor(fitting), "32-bit integer"),
        (torch.tensor(fitting, dtype=torch.float32), "32-bit integer"),
        ([2.5] * hvd.size(), "32-bit integer"),
        ([2**40] * hvd.size(), "32-bit integer"),
        (torch.tensor([fitting], dtype=torch.int32), "1D splits tensor"),
        ([-1, *fitting[1:]], "splits"),
    ):
        error_of(lambda wrong=wrong: hvd.alltoall(rows, wrong), ValueError, fragment)
    check_alive()


def roots() -> None:
    for root in (-1, hvd.size(), 1000):
        error_of(lambda root=root: hvd.broadcast(torch.ones(2), root), ValueError, "root rank")
    check_alive()


def names_in_flight() -> None:
    for guilty in range(hvd.size()):
        first = None
        if hvd.rank() == guilty:  # the others are behind the barrier: "twice" stays in flight
            first = hvd.allreduce_async(torch.ones(2), name="twice")
            error_of(
                lambda: hvd.allreduce_async(torch.ones(2), name="twice"),
                ValueError,
                "same name as another tensor",
                "twice",
            )
            # A group with that name is another operation, and none of its members stays behind.
            group = hvd.grouped_allreduce_async([torch.ones(2)], name="twice.group")
            error_of(
                lambda: hvd.grouped_allreduce_async([torch.ones(2)], name="twice.group"),
                ValueError,
                "same name as another tensor",
            )
        hvd.barrier()
        if first is None:
            first = hvd.allreduce_async(torch.ones(2), name="twice")
            group = hvd.grouped_allreduce_async([torch.ones(2)], name="twice.group")
        same(hvd.synchronize(first), torch.ones(2), "first")
        same(hvd.synchronize(group)[0], torch.ones(2), "group")
        check_alive()


def disagreements() -> None:
    odd = hvd.rank() == hvd.size() - 1
    calls: dict[str, tuple[Call, str]] = {
        "dtype": (
            lambda: hvd.allreduce(
                torch.ones(4, dtype=torch.int32 if odd else torch.float32), name="m"
            ),
            "Mismatched data types",
        ),
        "shape": (
            lambda: hvd.allreduce_(torch.ones(5 if odd else 4), name="m"),
            "Mismatched ALLREDUCE tensor shapes",
        ),
        "op": (
            lambda: hvd.allreduce(torch.ones(4), op=hvd.Min if odd else hvd.Max, name="m"),
            "Mismatched reduction operation",
        ),
        "factor": (
            lambda: hvd.allreduce(torch.ones(4), prescale_factor=2.0 if odd else 1.0, name="m"),
            "Mismatched prescale and/or postscale factors",
        ),
        "root": (
            lambda: hvd.broadcast(torch.ones(4), 1 if odd else 0, name="m"),
            "Mismatched BROADCAST root ranks",
        ),
        "dimensions": (
            lambda: hvd.allgather(torch.ones((2, 2) if odd else (2,)), name="m"),
            "tensor of rank",
        ),
        "second dimension": (
            lambda: hvd.alltoall(torch.ones(hvd.size(), 3 if odd else 2), name="m"),
            "with dimension",
        ),
        "group": (
            lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(3 if odd else 2)], name="m"),
            "Mismatched ALLREDUCE tensor shapes",
        ),
    }
    for call, fragment in calls.values():
        text = error_of(call, hvd.HorovodInternalError, fragment)
        assert "m" in text
        check_alive()


def run() -> list[str]:
    hvd.init()
    return run_checks(
        strided,
        unsupported_types,
        sparse_tensors,
        other_devices,
        no_tensors,
        scalars,
        truth_values,
        reductions,
        splits,
        roots,
        names_in_flight,
        disagreements,
    )
