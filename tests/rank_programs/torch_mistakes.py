"""Rank programs: wrong use of what only torch has: its types, layouts, sparse tensors and threads.

The engine must work after each mistake. Those that every face refuses are in tests/conformance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from rank_programs import torch_forms as forms
from rank_programs.torch_cases import ALL, error_of, run_checks, same

import hvdtune.torch as hvd

Call = Callable[[], Any]
pair = hvd.ProcessSet([0, 1])


def check_alive() -> None:
    same(
        hvd.allreduce(torch.ones(3), op=hvd.Sum, name="alive"),
        torch.full((3,), float(hvd.size())),
        "alive",
    )


def refused_everywhere(tensor: Any, kind: type[Exception], *fragments: str) -> None:
    """Every operation on ``tensor``, alone and at every place in a group, fails at the call."""
    good = torch.ones(2 * hvd.size())
    for form in forms.FORMS:
        family = forms.family(form)
        for place in range(3 if form in forms.GROUPED else 1):
            tensors = [tensor]
            member: tuple[str, ...] = ()
            if form in forms.GROUPED:
                tensors = [good, good, good]
                tensors[place] = tensor
                member = (f"Member {place} of the group",)
            error_of(lambda f=form, t=tensors: forms.call(f, t), kind, family, *fragments, *member)
    check_alive()


def unsupported_types() -> None:
    """Every type of torch that the engine has no arithmetic for."""
    others = {d for d in vars(torch).values() if isinstance(d, torch.dtype)} - set(ALL)
    seen = set()
    for dtype in sorted(others, key=str):
        try:
            tensor = torch.empty(6, dtype=dtype)
            tensor.type()
        except (RuntimeError, TypeError):  # quantised types and those without a size
            continue
        seen.add(dtype)
        refused_everywhere(tensor, ValueError, f"Tensor type {tensor.type()} is not supported.")
    assert {torch.complex64, torch.complex128} <= seen


def sparse_tensors() -> None:
    refused_everywhere(torch.ones(6).to_sparse(), ValueError, "is not supported", "sparse")


def other_devices() -> None:
    meta = torch.ones(6, device="meta")
    refused_everywhere(meta, ValueError, "meta", "no memory yet", "to_empty()")


def callers_outside_the_set() -> None:
    if not pair.included():
        error_of(lambda: sparse("n", pair), ValueError, "is not a member of the provided")
    check_alive()


def sparse(name: str, process_set: Any = hvd.global_process_set) -> Callable[[], torch.Tensor]:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (4,))
    return hvd.sparse_allreduce_async(tensor, name, hvd.Sum, process_set)


def names_of_different_operations() -> None:
    """The same name in another operation, or another process set, is another name."""
    started = [forms.call(form, forms.ones(), name="one") for form in
               ("allreduce_async", "allgather_async", "broadcast_async", "alltoall_async",
                "reducescatter_async", "grouped_allreduce_async", "grouped_allgather_async",
                "grouped_reducescatter_async")]  # fmt: skip
    if pair.included():
        for form in ("allreduce_async", "grouped_allgather_async"):
            started.append(forms.call(form, forms.ones(), name="one", process_set=pair))
    for handle in reversed(started):
        assert hvd.synchronize(handle) is not None


def sparse_names_in_flight() -> None:
    for guilty in range(hvd.size()):
        if hvd.rank() == guilty:
            wait = sparse("s")
            error_of(lambda: sparse("s"), ValueError, "same name", "allgather.s.indices")
            hvd.barrier()
        else:
            hvd.barrier()
            wait = sparse("s")
        same(wait().to_dense()[0], torch.tensor(float(hvd.size())), "sparse")
    check_alive()


def barriers_of_two_threads() -> None:
    """The second of two barriers that a rank has under way is refused."""
    if hvd.rank() == 0:
        failures: list[str] = []
        results: list[object] = []

        def wait() -> None:
            try:
                results.append(hvd.barrier())
            except ValueError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not failures:  # one of them, whichever came second: the other waits for rank 1
            time.sleep(0.001)
        assert "same name as another tensor" in failures[0]
        same(hvd.allreduce(torch.ones(1), op=hvd.Max, name="go"), torch.ones(1), "go")
        for thread in threads:
            thread.join()
        assert results == [None]
        assert len(failures) == 1
    else:
        same(hvd.allreduce(torch.ones(1), op=hvd.Max, name="go"), torch.ones(1), "go")
        hvd.barrier()
    check_alive()


def handles() -> None:
    for unknown in (0, -1, 987_654, None, "5", sparse):
        assert hvd.synchronize(unknown) is None
        error_of(lambda u=unknown: hvd.poll(u), ValueError, "was not created or has been cleared")
    wait = sparse("callable")
    assert hvd.synchronize(wait) is None
    error_of(lambda: hvd.poll(wait), ValueError, "was not created or has been cleared")
    assert wait().is_sparse
    # A failed handle is forgotten like any other.
    size = 4 if hvd.rank() == 0 else 5
    handle = hvd.allreduce_async(torch.ones(size), name="fails")
    error_of(lambda: hvd.synchronize(handle), hvd.HorovodInternalError, "allreduce.fails")
    assert hvd.synchronize(handle) is None
    error_of(lambda: hvd.poll(handle), ValueError, "was not created or has been cleared")
    check_alive()


def run() -> list[str]:
    hvd.init(process_sets=[pair])
    return run_checks(
        unsupported_types,
        sparse_tensors,
        other_devices,
        callers_outside_the_set,
        names_of_different_operations,
        sparse_names_in_flight,
        barriers_of_two_threads,
        handles,
    )
