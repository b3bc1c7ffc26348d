"""Rank programs: wrong use of the torch collectives. The engine must work after each mistake."""

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


def strided() -> None:
    refused_everywhere(torch.ones(4, 6).t(), ValueError, "required to be contiguous", "(6, 4)")


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


def no_tensors() -> None:
    refused_everywhere([1.0, 2.0], TypeError, "list")


def scalars() -> None:
    """Where rows are needed. (allgather: torch_errors, for there all ranks learn of it.)"""
    for form in (*forms.ALLTOALLS, *forms.REDUCESCATTERS):
        error_of(lambda f=form: forms.call(f, [torch.tensor(1.0)]), ValueError, "scalar")
    for form in forms.GROUPED_REDUCESCATTERS:
        tensors = [torch.ones(2), torch.tensor(1.0)]
        error_of(lambda f=form, t=tensors: forms.call(f, t), ValueError, "scalar")
    check_alive()


def truth_values() -> None:
    """bool can be summed (or), but neither averaged nor scaled."""
    truths = torch.tensor([True, False])
    for form in (*forms.ALLREDUCES, *forms.GROUPED_ALLREDUCES):
        for arguments in (
            {"op": hvd.Average},
            {"op": hvd.Sum, "prescale_factor": 0.5},
            {"op": hvd.Max, "postscale_factor": 2.0},
        ):
            error_of(
                lambda f=form, a=arguments: forms.call(f, [torch.ones(2), truths], **a),
                ValueError,
                "bool",
            )
    check_alive()


def reductions() -> None:
    for form in (*forms.ALLREDUCES, *forms.GROUPED_ALLREDUCES):
        error_of(lambda f=form: forms.call(f, forms.ones(), op=17), ValueError, "17", "Average")
        error_of(
            lambda f=form: forms.call(f, forms.ones(), average=True, op=hvd.Average),
            ValueError,
            "op parameter supersedes average",
        )
        error_of(
            lambda f=form: forms.call(f, forms.ones(), op=hvd.Adasum),
            NotImplementedError,
            "Adasum",
            "power of two; the job has 3",
        )
    for form in (*forms.REDUCESCATTERS, *forms.GROUPED_REDUCESCATTERS):
        for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            error_of(
                lambda f=form, o=op: forms.call(f, forms.ones(), op=o),
                hvd.HorovodInternalError,
                "only supports AVERAGE and SUM",
            )
    for form in forms.GROUPED:
        error_of(
            lambda f=form: getattr(hvd, f)(torch.ones(4, 2)),
            ValueError,
            forms.family(form),
            "list of tensors",
        )
    check_alive()


def splits() -> None:
    rows = torch.ones(2 * hvd.size() + 1, 2)
    fitting = [2] * hvd.size()
    for wrong, fragment in (
        (None, "splits not provided"),
        ([3] * hvd.size(), "Sum of splits entries is greater"),
        ([1], "Number of entries in splits"),
        ([], "Number of entries in splits"),
        ([*fitting, 0], "Number of entries in splits"),
        (torch.tensor(fitting), "32-bit integer"),
        (torch.tensor(fitting, dtype=torch.float32), "32-bit integer"),
        ([2.5] * hvd.size(), "32-bit integer"),
        ([2**40] * hvd.size(), "32-bit integer"),
        (torch.tensor([fitting], dtype=torch.int32), "1D splits tensor"),
        (torch.tensor(2, dtype=torch.int32), "1D splits tensor"),
        ([-1, *fitting[1:]], "splits"),
    ):
        for form in forms.ALLTOALLS:
            error_of(lambda f=form, w=wrong: forms.call(f, [rows], splits=w), ValueError, fragment)
    check_alive()


def roots() -> None:
    for form in forms.BROADCASTS:
        for root in (-1, hvd.size(), 1000):
            error_of(
                lambda f=form, r=root: forms.call(f, forms.ones(), root_rank=r, name="b"),
                ValueError,
                f"invalid root rank {root}",
                "broadcast.b",
            )
    check_alive()


def roots_of_a_set() -> None:
    """Ranks are global ones: 0 and 1 are in the set, 2 is a rank of the job only."""
    if pair.included():
        for form in forms.BROADCASTS:
            for root in (2, -1, hvd.size()):
                text = error_of(
                    lambda f=form, r=root: forms.call(
                        f, forms.ones(), root_rank=r, name="r", process_set=pair
                    ),
                    ValueError,
                    f"invalid root rank {root}",
                )
                assert "broadcast.r" in text
    check_alive()


def callers_outside_the_set() -> None:
    """The members' operations are not harmed by a caller that is not one of them."""
    for form in forms.FORMS:
        arguments = {"name": "n", "process_set": pair}
        if pair.included():
            result = forms.complete(form, forms.ones(), **arguments)
            assert result is not None
        else:
            text = error_of(
                lambda f=form, a=arguments: forms.call(f, forms.ones(), **a),
                ValueError,
                "is not a member of the provided process set",
                f"rank {hvd.rank()}",
            )
            assert f"{forms.family(form)}.n" in text
    if not pair.included():
        error_of(
            lambda: hvd.barrier(process_set=pair), ValueError, "is not a member of the provided"
        )
        error_of(lambda: sparse("n", pair), ValueError, "is not a member of the provided")
    check_alive()


def unregistered_sets() -> None:
    unregistered = hvd.ProcessSet([1, 0])
    calls: list[Call] = [
        lambda form=form: forms.call(form, forms.ones(), name="u", process_set=unregistered)
        for form in forms.FORMS
    ]
    calls += [lambda: hvd.barrier(process_set=unregistered), lambda: sparse("u", unregistered)]
    for call in calls:
        error_of(call, ValueError, "ranks=[0, 1]", "registered")
    check_alive()


def arguments_of_the_wrong_type() -> None:
    for form in forms.FORMS:
        root = {"root_rank": 0} if form in forms.BROADCASTS else {}
        for wrong in ([0], None, "global"):
            error_of(
                lambda f=form, w=wrong, r=root: forms.call(f, forms.ones(), process_set=w, **r),
                TypeError,
                f"must be a ProcessSet, not {wrong!r}",
            )
    for form in forms.BROADCASTS:
        for wrong in ("0", None, 1.0):
            error_of(
                lambda f=form, w=wrong: forms.call(f, forms.ones(), root_rank=w),
                TypeError,
                f"root_rank must be the number of a rank, not {wrong!r}",
            )
    for form in forms.GROUPED:
        for wrong in (5, None):
            error_of(lambda f=form, w=wrong: forms.call(f, w), TypeError, "takes a list of tensors")
    for form in forms.ALLTOALLS:
        for wrong in ("2 2 2", [None], object()):
            error_of(
                lambda f=form, w=wrong: forms.call(f, forms.ones(), splits=w),
                ValueError,
                "32-bit integer",
            )
    for form in forms.REDUCING:
        error_of(
            lambda f=form: forms.call(f, forms.ones(), postscale_factor=float("nan")),
            ValueError,
            "postscale_factor must be a number, not NaN",
        )
    check_alive()


def wrong_arguments(form: str) -> dict[tuple[str, Any], type[Exception]]:
    """(argument, value) that the form refuses."""
    if form in forms.REDUCING:
        return {("prescale_factor", "1"): TypeError, ("op", 17): refusal_of_operators(form)}
    if form in forms.BROADCASTS:
        return {("root_rank", 77): ValueError, ("root_rank", "0"): TypeError}
    if form in forms.ALLTOALLS:
        return {("splits", (99, 0, 0)): ValueError, ("splits", (1, 1)): ValueError}
    return {("name", "x" * 5000): ValueError}


def refusal_of_operators(form: str) -> type[Exception]:
    return hvd.HorovodInternalError if "reducescatter" in form else ValueError


def refused_on_one_rank() -> None:
    """An unnamed call that one rank makes wrongly, and then rightly: the others never know."""
    for guilty in range(hvd.size()):
        for form in forms.FORMS:
            if hvd.rank() == guilty:
                for wrong, kind in wrong_arguments(form).items():
                    argument, value = wrong
                    error_of(
                        lambda f=form, a=argument, v=value: forms.call(f, forms.ones(), **{a: v}),
                        kind,
                    )
            forms.complete(form, forms.ones())
    check_alive()


def sparse(name: str, process_set: Any = hvd.global_process_set) -> Callable[[], torch.Tensor]:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (4,))
    return hvd.sparse_allreduce_async(tensor, name, hvd.Sum, process_set)


def names_in_flight() -> None:
    """Every form, each rank in turn: the others are behind the barrier, so "twice" is in flight."""
    for form in forms.ASYNCHRONOUS:
        for guilty in range(hvd.size()):
            if hvd.rank() == guilty:
                first = forms.call(form, forms.ones(), name="twice")
                others = [f for f in forms.FORMS if forms.family(f) == forms.family(form)]
                for other in others:  # in whatever form, and a group of whatever size
                    for tensors in (forms.ones(), [torch.ones(9)]):
                        text = error_of(
                            lambda o=other, t=tensors: forms.call(o, t, name="twice"),
                            ValueError,
                            "same name as another tensor",
                        )
                        assert f"{forms.family(form)}.twice" in text
                hvd.barrier()
            else:
                hvd.barrier()
                first = forms.call(form, forms.ones(), name="twice")
            result = hvd.synchronize(first)
            wanted = forms.complete(form, forms.ones(), name="another")
            check_equal(result, wanted, form)
        check_alive()


def check_equal(got: Any, wanted: Any, what: object) -> None:
    if isinstance(got, torch.Tensor):
        return same(got, wanted, what)
    for one, other in zip(got, wanted, strict=True):
        check_equal(one, other, what)


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


def factors_of_the_wrong_type() -> None:
    for wrong in ("1", None, [1.0]):
        for form in forms.REDUCING:
            for factor in ("prescale_factor", "postscale_factor"):
                arguments = {factor: wrong, "name": "f"}
                error_of(
                    lambda f=form, a=arguments: forms.call(f, forms.ones(), **a),
                    TypeError,
                    f"{factor} must be a number, not {wrong!r}",
                )
    check_alive()


def run() -> list[str]:
    hvd.init(process_sets=[pair])
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
        roots_of_a_set,
        callers_outside_the_set,
        unregistered_sets,
        refused_on_one_rank,
        names_in_flight,
        names_of_different_operations,
        sparse_names_in_flight,
        barriers_of_two_threads,
        handles,
        factors_of_the_wrong_type,
        arguments_of_the_wrong_type,
    )
