"""Rank programs: ranks that run out of data at different times and join.

Who joins last is decided by the data: the rank with the most steps can only finish them when all
others have joined.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import torch
from rank_programs import torch_forms as forms
from rank_programs.mistakes import Outcome, outcome
from rank_programs.torch_cases import (
    ALL,
    EXACT,
    error_of,
    rank_input,
    reduced,
    run_checks,
    same,
)

import hvdtune.torch as hvd
from hvdtune.core import operations

OPS = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)
others = hvd.ProcessSet([0])  # replaced in run()


def everyone() -> range:
    return range(hvd.size())


def contributions(
    dtype: torch.dtype, shape: tuple[int, ...], active: list[int], shift: int = 0
) -> torch.Tensor:
    """What the ranks give to an allreduce: zeros from those who have joined."""
    parts = []
    for rank in everyone():
        mine = rank_input(rank + shift, dtype, shape).to(EXACT)
        parts.append(mine if rank in active else torch.zeros_like(mine))
    return torch.stack(parts)


def check_step(name: str, steps: list[int], step: int) -> None:
    """One step of training: what is reduced, how, and in which form changes with its number."""
    active = [rank for rank in everyone() if steps[rank] > step]
    dtype = ALL[step % len(ALL)]
    shape: tuple[int, ...] = ((5,), (), (0,), (3, 7), (20_011,))[step % 5]
    op = OPS[step % len(OPS)]
    if dtype is torch.bool and op == hvd.Average:
        op = hvd.Sum
    mine = rank_input(hvd.rank() + step, dtype, shape)
    expected = reduced(contributions(dtype, shape, active, step), op, dtype)
    what = (name, step, dtype, shape, op, active)
    handle = hvd.allreduce_async(mine, op=op, name=f"{name}.{step}.async")
    same(hvd.allreduce(mine, op=op, name=f"{name}.{step}"), expected, what)
    members = [(torch.float32, (step + 1,)), (torch.int64, ()), (torch.float16, (2, 3))]
    group = hvd.grouped_allreduce(
        [rank_input(hvd.rank(), *member) for member in members],
        op=hvd.Sum,
        prescale_factor=2.0,
        postscale_factor=0.5,
        name=f"{name}.{step}.group",
    )
    for got, member in zip(group, members, strict=True):
        same(got, contributions(*member, active).sum(0).to(member[0]), (*what, member))
    same(hvd.synchronize(handle), expected, what)


def train(name: str, steps: list[int]) -> int:
    """Run this rank's steps, then join; the rank that joined last."""
    for step in range(steps[hvd.rank()]):
        check_step(name, steps, step)
    last = hvd.join()
    assert type(last) is int
    every = hvd.allgather(torch.tensor([last])).tolist()
    assert every == [last] * hvd.size(), every
    longest = max(steps)
    if steps.count(longest) == 1:
        assert last == steps.index(longest), (last, steps)
    else:
        assert steps[last] == longest, (last, steps)
    return last


def each_rank_first() -> None:
    """New names: some ranks see them first while another has joined, and use them later."""
    for first in everyone():
        steps = [6 + (rank - first) % hvd.size() for rank in everyone()]
        steps[first] = 1
        train(f"new.{first}", steps)
        train(f"new.{first}", [max(steps)] * hvd.size())  # now all of them use all names


def cached_names() -> None:
    """The names are known to all from a round in which nobody was early."""
    train("known", [7] * hvd.size())
    for last in everyone():
        steps = [2 * ((rank - last - 1) % hvd.size()) for rank in everyone()]
        train("known", steps)
    train("known", [7] * hvd.size())


def some_have_nothing() -> None:
    """Ranks without any data, and more than one that joins early or late."""
    for busy in everyone():
        steps = [0] * hvd.size()
        steps[busy] = 3
        assert train(f"busy.{busy}", steps) == busy
        idle = [3] * hvd.size()
        idle[busy] = 0
        assert train(f"idle.{busy}", idle) != busy


def nothing_to_do() -> None:
    """Joins without a step, one after the other."""
    for _ in range(20):
        assert hvd.join() in everyone()
    assert hvd.join(device=-1) in everyone()
    assert hvd.join(0) in everyone()


def average_of_all_ranks() -> None:
    """A joined rank counts: zeros are averaged in."""
    size = hvd.size()
    for joined in everyone():
        if hvd.rank() != joined:
            six = torch.tensor([6.0, 6.0])
            same(hvd.allreduce(six, name="six"), six * ((size - 1) / size), "Average")
            same(hvd.allreduce(six, op=hvd.Min, name="low"), torch.zeros(2), "Min")
            same(hvd.allreduce(six, op=hvd.Product, name="product"), torch.zeros(2), "Product")
            same(hvd.allreduce(-six, op=hvd.Max, name="high"), torch.zeros(2), "Max")
            whole = torch.tensor([7], dtype=torch.int32)
            average = torch.tensor([7 * (size - 1) // size], dtype=torch.int32)
            same(hvd.allreduce(whole, name="whole"), average, "integers")
        hvd.join()


def submitted_before_joining() -> None:
    """What a rank has under way when it joins is its own data."""
    for early in everyone():
        handles = [
            hvd.allreduce_async(torch.full((n + 1,), 1.0), op=hvd.Sum, name=f"before.{n}")
            for n in range(10)
        ]
        if hvd.rank() != early:
            for n in range(10):
                result = hvd.synchronize(handles[n])
                same(result, torch.full((n + 1,), float(hvd.size())), n)
        hvd.join()
        if hvd.rank() == early:
            for n, handle in enumerate(handles):
                same(hvd.synchronize(handle), torch.full((n + 1,), float(hvd.size())), n)


def unnamed_operations() -> None:
    """Automatic names count the calls: after unequal numbers of calls they must still match."""
    for _ in range(hvd.rank() + 1):
        hvd.allreduce(torch.ones(2), op=hvd.Sum)
    hvd.join()
    total = torch.full((2,), float(hvd.size()))
    for _ in range(3):
        same(hvd.allreduce(torch.ones(2), op=hvd.Sum), total, "unnamed")
        same(hvd.grouped_allreduce([torch.ones(2)], op=hvd.Sum)[0], total, "unnamed group")
        assert hvd.allgather(torch.ones(1)).shape == (hvd.size(),)


def gradients() -> None:
    """A backward pass of those who still have data."""
    if hvd.rank() != 0:
        tensor = torch.ones(3, requires_grad=True)
        hvd.allreduce(tensor, op=hvd.Sum, name="forward").sum().backward()
        same(tensor.grad, torch.full((3,), float(hvd.size() - 1)), "gradient")
    hvd.join()


def disagreement_of_the_others() -> None:
    """They are told; the rank that has joined is not disturbed."""
    if hvd.size() < 3:
        return
    for joined in everyone():
        if hvd.rank() != joined:
            active = [rank for rank in everyone() if rank != joined]
            odd = hvd.rank() == active[-1]
            text = error_of(
                lambda o=odd: hvd.allreduce(torch.ones(3 if o else 2), name="differ"),
                hvd.HorovodInternalError,
                "Mismatched ALLREDUCE tensor shapes",
                "allreduce.differ",
            )
            assert f"rank {active[0]} has" in text
            assert f"rank {active[-1]} has" in text
            same(
                hvd.allreduce(torch.ones(2), op=hvd.Sum, name="differ"),
                torch.full((2,), float(hvd.size() - 1)),
                "again",
            )
        hvd.join()


def other_process_sets() -> None:
    """Join is about the whole job: sets go on, also with a member that has joined."""
    handle = operations.join_async() if hvd.rank() == 0 else None
    if others.included():
        members = others.size()
        assert members
        for form in forms.FORMS:
            forms.complete(form, forms.ones(12), name="in a set", process_set=others)
        same(
            hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=others),
            torch.full((2,), float(members)),
            "set",
        )
        hvd.barrier(process_set=others)
    if handle is None:
        hvd.join()
    else:
        hvd.synchronize(handle)


def check_all_forms(name: str) -> None:
    """Everything works when nobody has joined."""
    for form in forms.FORMS:
        forms.complete(form, forms.ones(12), name=name)
    hvd.barrier()


def run_uneven() -> list[str]:
    size = int(os.environ["HOROVOD_SIZE"])
    others.ranks = list(range(1, size))
    hvd.init(process_sets=[others])
    return run_checks(
        each_rank_first,
        cached_names,
        some_have_nothing,
        nothing_to_do,
        average_of_all_ranks,
        submitted_before_joining,
        unnamed_operations,
        gradients,
        disagreement_of_the_others,
        other_process_sets,
        lambda: check_all_forms("in the end"),
    )


# ---- what is refused ----------------------------------------------------------------------------

NOT_WITH_JOIN = (
    *forms.GATHERING,
    *forms.BROADCASTS,
    *forms.ALLTOALLS,
    *forms.REDUCESCATTERS,
    *forms.GROUPED_REDUCESCATTERS,
)


def sparse() -> Any:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (4,))
    return hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)()


def run_refused() -> dict[tuple[str, str, int], Outcome]:
    """Operations that the others start while one rank joins; the joined rank's outcome is join's.

    Key: the form, "new" or "known" for whether the name is in the cache, and who joined.
    """
    hvd.init()
    calls: dict[str, Callable[[str], Any]] = {
        form: lambda name, form=form: forms.complete(form, forms.ones(12), name=name)
        for form in NOT_WITH_JOIN
    }
    calls["barrier"] = lambda name: hvd.barrier()
    calls["sparse_allreduce_async"] = lambda name: sparse()
    calls["broadcast_object"] = lambda name: hvd.broadcast_object({1: 2}, name=name)
    calls["allgather_object"] = lambda name: hvd.allgather_object({1: 2}, name=name)
    seen = {}
    for form, call in calls.items():
        for joined in everyone():
            for when in ("new", "known"):
                # "known": the round before has left it in the cache.
                name = f"{form}.{joined}"
                if hvd.rank() == joined:
                    seen[form, when, joined] = outcome(hvd.join)
                else:
                    seen[form, when, joined] = outcome(lambda c=call, n=name: c(n))
                    total = torch.full((2,), float(hvd.size() - 1))
                    same(hvd.allreduce(torch.ones(2), op=hvd.Sum, name="go on"), total, form)
                    hvd.join()
                assert outcome(lambda c=call, n=name: c(n))[0] == ""
    hvd.shutdown()
    return seen


def run_late_submissions(directory: str) -> dict[int, list[Outcome]]:
    """What a rank submits after it has joined, from this and another thread; one list a rank.

    The others join only when the file says that everything was tried.
    """
    hvd.init()
    seen: dict[int, list[Outcome]] = {}
    for joined in everyone():
        tried = Path(directory) / f"{joined}.tried"
        if hvd.rank() == joined:
            handle = operations.join_async()
            seen[joined] = []

            def try_all(seen: list[Outcome] = seen[joined]) -> None:
                for form in forms.FORMS:
                    seen.append(outcome(lambda f=form: forms.call(f, forms.ones(), name="late")))
                seen.append(outcome(hvd.barrier))
                seen.append(outcome(hvd.join))

            try_all()
            thread = threading.Thread(target=try_all)
            thread.start()
            thread.join()
            assert hvd.poll(handle) is False
            tried.touch()
            assert hvd.synchronize(handle) != joined or hvd.size() == 1
        else:
            while not tried.exists():
                sleep(0.001)
            hvd.join()
        check_all_forms("late")
    hvd.shutdown()
    return seen


# ---- ends of a job ------------------------------------------------------------------------------


def run_shutdown() -> Outcome:
    """The last rank shuts down while the others have joined."""
    hvd.init()
    hvd.allreduce(torch.ones(2))
    if hvd.rank() == hvd.size() - 1:
        hvd.shutdown()
        return "", "shut down"
    return outcome(hvd.join)


def run_death() -> Outcome:
    """The last rank is killed while the others have joined."""
    hvd.init()
    hvd.allreduce(torch.ones(2))
    if hvd.rank() == hvd.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(hvd.join)


def run_autotuned(epochs: int, steps: int) -> list[int]:
    """Epochs of uneven length while the autotuner tries settings; who joined last, by epoch."""
    hvd.init()
    last = []
    for epoch in range(epochs):
        mine = steps + (epoch + hvd.rank()) % hvd.size()
        for step in range(mine):
            active = sum(steps + (epoch + rank) % hvd.size() > step for rank in everyone())
            handles = [
                hvd.allreduce_async_(torch.ones(500 * (n + 1)), op=hvd.Sum, name=f"gradient.{n}")
                for n in range(8)
            ]
            for n, handle in enumerate(handles):
                total = torch.full((500 * (n + 1),), float(active))
                same(hvd.synchronize(handle), total, (epoch, step))
        last.append(hvd.join())
        # Evaluation, where all ranks take part again.
        assert hvd.allgather(torch.ones(1), name="evaluation").shape == (hvd.size(),)
    hvd.shutdown()
    return last
