"""Rank programs: what cannot be made equal is an error that every rank learns of, without a hang.

``torch_state.run`` runs these too. Every check ends with a barrier: the job is usable after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from rank_programs.torch_cases import error_of

import hvdtune.torch as hvd


def last() -> int:
    return hvd.size() - 1


def parameters_of_no_use() -> None:
    """The same mistake on all ranks."""
    for wrong in (3, torch.ones(2), "weights", None):
        error_of(
            lambda wrong=wrong: hvd.broadcast_parameters(wrong, 0),
            ValueError,
            "invalid params of type",
        )
    error_of(
        lambda: hvd.broadcast_parameters({"good": torch.ones(1), "note": "text"}, 0),
        ValueError,
        "'note'",
        "str",
    )
    error_of(lambda: hvd.broadcast_parameters([("a", 1, 2)], 0), ValueError, "('a', 1, 2)")
    twice = [("w", torch.ones(1)), ("w", torch.ones(1))]
    error_of(lambda: hvd.broadcast_parameters(twice, 0), ValueError, "given twice: w")
    complex_numbers = {"phase": torch.ones(1, dtype=torch.complex64)}
    error_of(lambda: hvd.broadcast_parameters(complex_numbers, 0), ValueError, "'phase'")
    sparse = {"table": torch.eye(2).to_sparse()}
    error_of(lambda: hvd.broadcast_parameters(sparse, 0), ValueError, "'table'")
    lazy = torch.nn.LazyLinear(2)
    error_of(lambda: hvd.broadcast_parameters(lazy.named_parameters(), 0), ValueError, "'weight'")
    error_of(lambda: hvd.broadcast_parameters([torch.ones(1)], hvd.size()), ValueError, "root rank")


def parameters_of_one_rank() -> None:
    """One rank's mistake: it hears what it did, the others which rank did it."""
    own = hvd.rank() == last()
    tensors: dict[str, Any] = {"a": torch.ones(2), "b": "text" if own else torch.ones(2)}
    text = error_of(lambda: hvd.broadcast_parameters(tensors, 0), ValueError, "'b' is a str")
    assert own or f"rank {last()}" in text
    more = {"a": torch.ones(2), **({"extra.weight": torch.ones(1)} if own else {})}
    error_of(
        lambda: hvd.broadcast_parameters(more, 0),
        ValueError,
        f"rank {last()} has a parameter 'extra.weight'",
        "rank 0",
    )
    fewer = {} if own else {"a": torch.ones(2)}
    error_of(lambda: hvd.broadcast_parameters(fewer, 0), ValueError, f"rank {last()}", "'a'")
    unnamed = [torch.ones(1)] * (2 if own else 3)
    error_of(
        lambda: hvd.broadcast_parameters(unnamed, 0), ValueError, f"rank {last()} has 2", "has 3"
    )
    for other in (torch.ones(3), torch.ones(2, dtype=torch.float64)):
        tensor = other if own else torch.ones(2)
        kind = "tensor shapes" if other.dtype is torch.float32 else "data types"
        good = torch.full((2,), float(hvd.rank()))
        named = {"first": good, "layer.bias": tensor}
        error_of(
            lambda named=named: hvd.broadcast_parameters(named, 0),
            hvd.HorovodInternalError,
            f"Mismatched {'BROADCAST ' if 'shapes' in kind else ''}{kind}",
            "layer.bias",
        )
        assert good.tolist() == [0.0, 0.0], "the others of the call are broadcast all the same"


def optimizers() -> None:
    model = torch.nn.Linear(2, 2)
    lbfgs = torch.optim.LBFGS(model.parameters())
    error_of(lambda: hvd.broadcast_optimizer_state(lbfgs, 0), ValueError, "LBFGS")
    wrapped = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))
    error_of(lambda: hvd.broadcast_optimizer_state(wrapped, 0), ValueError, "LBFGS")
    error_of(lambda: hvd.broadcast_optimizer_state(model, 0), ValueError, "Linear")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    one = lbfgs if hvd.rank() == last() else sgd
    text = error_of(lambda: hvd.broadcast_optimizer_state(one, 0), ValueError, "LBFGS")
    assert one is lbfgs or f"rank {last()}" in text
    count = 1 if hvd.rank() == last() else 2
    fewer = torch.optim.SGD(list(model.parameters())[:count], lr=0.1)
    error_of(
        lambda: hvd.broadcast_optimizer_state(fewer, 0), ValueError, f"rank {last()}", "[1]", "[2]"
    )
    sgd.param_groups[0]["guard"] = threading.Lock() if hvd.rank() == 0 else None
    error_of(lambda: hvd.broadcast_optimizer_state(sgd, 0), ValueError, "rank 0", "lock")
    error_of(lambda: hvd.broadcast_optimizer_state(fewer, hvd.size()), ValueError)


def made_on(rank: int) -> str:
    if hvd.rank() != rank:
        raise RuntimeError(f"this can only be made on rank {rank}")
    return "made"


class OnlyThere:
    """Can be pickled everywhere, and loaded on one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __reduce__(self) -> tuple[Callable[[int], str], tuple[int]]:
        return made_on, (self.rank,)


def objects_that_cannot_be_pickled() -> None:
    for root in range(hvd.size()):
        thing = threading.Lock() if hvd.rank() == root else None
        text = error_of(
            lambda thing=thing, root=root: hvd.broadcast_object(thing, root),
            ValueError,
            f"rank {root} has a lock that cannot be pickled",
            "TypeError",
        )
        assert hvd.allgather_object(text) == [text] * hvd.size()
    # What the others pass does not matter.
    assert hvd.broadcast_object("x" if hvd.rank() == 0 else threading.Lock(), 0) == "x"
    for bad in ([0], list(range(hvd.size()))):
        thing = threading.Lock() if hvd.rank() in bad else "fine"
        error_of(
            lambda thing=thing: hvd.allgather_object(thing),
            ValueError,
            *(f"rank {rank} has a lock" for rank in bad),
        )


def objects_that_cannot_be_loaded() -> None:
    thing = OnlyThere(0)
    if hvd.rank() == 0:
        assert hvd.broadcast_object(thing, 0) is thing
    else:
        error_of(
            lambda: hvd.broadcast_object(thing, 0),
            ValueError,
            f"rank {hvd.rank()} cannot load the object of rank 0",
            "only be made on rank 0",
        )
    mine = OnlyThere(last())
    if hvd.rank() == last():
        assert hvd.allgather_object(mine) == ["made"] * hvd.size()
    else:
        error_of(lambda: hvd.allgather_object(mine), ValueError, "cannot load", "rank 0")


CHECKS = (
    parameters_of_no_use,
    parameters_of_one_rank,
    optimizers,
    objects_that_cannot_be_pickled,
    objects_that_cannot_be_loaded,
)
