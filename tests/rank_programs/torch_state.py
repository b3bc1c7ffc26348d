"""Rank programs: making parameters, optimizer state and objects equal on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rank_programs import torch_state_faults
from rank_programs.torch_cases import ALL, error_of, rank_input, run_checks, same
from rank_programs.torch_training import new_model, train_alone

import hvdtune.torch as hvd
from hvdtune.core.objects import allgather_object

Optimizer = torch.optim.Optimizer


def own_model() -> torch.nn.Module:
    """A model with other weights on every rank, and a buffer of integers."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
    ).double()
    model[1].num_batches_tracked += hvd.rank()
    return model


def model_of(root: int) -> torch.nn.Module:
    torch.manual_seed(root)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
    ).double()
    model[1].num_batches_tracked += root
    return model


def check_model(model: torch.nn.Module, root: int, what: object) -> None:
    for name, expected in model_of(root).state_dict().items():
        same(model.state_dict()[name], expected, (what, name))


def parameters() -> None:
    forms: dict[str, Callable[[torch.nn.Module], Any]] = {
        "state_dict": lambda m: m.state_dict(),
        "named_parameters": lambda m: m.named_parameters(),
        "list of named_parameters": lambda m: list(m.named_parameters()),
        "parameters": lambda m: m.parameters(),
        "list of parameters": lambda m: list(m.parameters()),
        "dict": lambda m: dict(m.named_parameters()),
    }
    for what, form in forms.items():
        for root in range(hvd.size()):
            model = own_model()
            identities = [id(p) for p in model.parameters()]
            hvd.broadcast_parameters(form(model), root_rank=root)
            if what == "state_dict":
                check_model(model, root, what)
            else:
                for got, expected in zip(
                    model.parameters(), model_of(root).parameters(), strict=True
                ):
                    same(got.detach(), expected.detach(), (what, root))
            assert identities == [id(p) for p in model.parameters()]
    # Dictionaries are taken in the order of their keys, whatever order they have here.
    names = ["a", "b", "c"] if hvd.rank() % 2 == 0 else ["c", "a", "b"]
    values = {name: torch.full((2,), float(hvd.rank())) for name in names}
    hvd.broadcast_parameters(values, root_rank=0)
    assert all((tensor == 0).all() for tensor in values.values())


def unusual_parameters() -> None:
    for dtype in ALL:
        tensor = rank_input(hvd.rank(), dtype, (3, 2))
        hvd.broadcast_parameters({"x": tensor}, 0)
        same(tensor, rank_input(0, dtype, (3, 2)), dtype)
    strided = torch.full((3, 4), float(hvd.rank())).t()
    hvd.broadcast_parameters([("strided", strided)], 0)
    assert (strided == 0).all()
    assert not strided.is_contiguous()
    scalar = torch.tensor(float(hvd.rank() + 1), requires_grad=True)
    hvd.broadcast_parameters([scalar, torch.empty(0)], 0)
    assert scalar.item() == 1.0
    hvd.broadcast_parameters({}, 0)
    row = torch.arange(5.0) + 10 * hvd.rank()
    expanded = row.expand(3, 5)
    hvd.broadcast_parameters({"mask": expanded}, 0)
    assert row.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert expanded.stride() == (0, 1)


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, weight_decay=0.3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "SGD plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """A state_dict as one dict from paths to values; tensors as (type, nested lists)."""
    if isinstance(value, dict):
        parts = [flat(item, f"{path}/{key}") for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [flat(item, f"{path}/{i}") for i, item in enumerate(value)]
    elif isinstance(value, torch.Tensor):
        return {path: (str(value.dtype), tuple(value.shape), value.tolist())}
    else:
        return {path: (type(value).__name__, value)}
    return {key: item for part in parts for key, item in part.items()}


def optimizer_state() -> None:
    """Ranks that trained otherwise, or not at all, get the root's state and keep their weights."""
    for name, make in OPTIMIZERS.items():
        for root, trained in ((0, range(hvd.size())), (0, [0]), (hvd.size() - 1, [0])):
            what = (name, root, list(trained))
            model = new_model()
            optimizer = make(model.parameters())
            if hvd.rank() in trained:
                train_alone(model, optimizer, hvd.rank() + 1)
            optimizer.param_groups[0]["lr"] = 0.5 + hvd.rank()
            optimizer.param_groups[0]["note"] = [hvd.rank(), None, ("x", 1.5)]
            weights = copy.deepcopy(model.state_dict())
            expected = hvd.broadcast_object(flat(optimizer.state_dict()), root)
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            assert flat(optimizer.state_dict()) == expected, what
            for key, value in weights.items():
                assert (model.state_dict()[key] == value).all(), (what, key)
            hvd.broadcast_parameters(model.state_dict(), root)
            train_alone(model, optimizer, 2)  # the state can be used, and leads to equal weights
            every = hvd.allgather(model[0].weight.detach().reshape(1, -1))
            assert (every == every[0]).all(), what


def distributed_optimizer_state() -> None:
    model = new_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), model.named_parameters()
    )
    if hvd.rank() == 0:  # a checkpoint that only rank 0 reads
        other = new_model()
        donor = torch.optim.Adam(other.parameters(), lr=0.125)
        train_alone(other, donor, 3)
        optimizer.load_state_dict(donor.state_dict())
    hvd.broadcast_optimizer_state(optimizer, 0, model)
    assert optimizer.param_groups[0]["lr"] == 0.125
    steps = {float(state["step"]) for state in optimizer.state.values()}
    assert steps == {3.0}
    assert len(optimizer.state) == len(list(model.parameters()))


def state_of_one_rank_alone() -> None:
    """It comes to the device on which the root has it, whatever the default device."""
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters())
    if hvd.rank() == 0:
        train_alone(model, optimizer, 1)
    with torch.device("meta"):
        hvd.broadcast_optimizer_state(optimizer, 0)
    assert len(optimizer.state) == len(list(model.parameters()))
    for state in optimizer.state.values():
        assert {tensor.device.type for tensor in state.values()} == {"cpu"}
        assert state["step"].item() == 1


def nested_state() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rank = hvd.rank()
    optimizer.state[weight] = {
        "history": [torch.full((2,), float(rank)), {"deep": torch.tensor(rank)}],
        "nothing": None,
        "kind": float(rank) if rank % 2 else rank,
        "mask": torch.tensor([rank > 0]),
    }
    hvd.broadcast_optimizer_state(optimizer, 1 % hvd.size())
    state = optimizer.state[weight]
    assert state["history"][0].tolist() == [1.0, 1.0]
    assert state["history"][1]["deep"].item() == 1
    assert state["nothing"] is None
    assert type(state["kind"]) is float
    assert state["mask"].item() is True


def options_that_change_type() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    lr, betas = ((0.5, (0.1, 0.2)), (torch.tensor(0.25), (torch.tensor(0.5), torch.tensor(0.75))))[
        hvd.rank() % 2
    ]
    for root in range(2):
        optimizer = torch.optim.AdamW([weight], lr=lr, betas=betas, foreach=False, capturable=False)
        optimizer.param_groups[0]["weight_decay"] = None if hvd.rank() == root else "x"
        hvd.broadcast_optimizer_state(optimizer, root)
        options = optimizer.param_groups[0]
        assert options["weight_decay"] is None
        assert type(options["lr"]) is (torch.Tensor if root else float)
        assert type(options["betas"]) is tuple
        assert [float(value) for value in (options["lr"], *options["betas"])] == (
            [0.25, 0.5, 0.75] if root else [0.5, 0.1, 0.2]
        )


def state_that_no_broadcast_takes() -> None:
    """Complex and sparse tensors travel inside the object, state of no parameter as well."""
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer = torch.optim.Adam([weight])
    rank = hvd.rank()
    optimizer.state[weight] = {
        "phase": torch.full((2,), complex(rank, -rank)),
        "sparse": torch.eye(2).to_sparse() * (rank + 1),
    }
    optimizer.state["whole job"] = {"norm": torch.tensor(float(rank)), "steps": rank}
    root = hvd.size() - 1
    hvd.broadcast_optimizer_state(optimizer, root)
    state = optimizer.state[weight]
    assert state["phase"].tolist() == [complex(root, -root)] * 2
    assert state["sparse"].to_dense().tolist() == [[root + 1, 0], [0, root + 1]]
    assert optimizer.state["whole job"] == {"norm": torch.tensor(float(root)), "steps": root}


def fresh_optimizers() -> None:
    """Without state on the root there is none afterwards; missing gradients become zeros."""
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    parameters = [torch.nn.Parameter(torch.ones(3)), frozen, embedding.weight]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 0.1, 0.9, weight_decay=1.0))
    hvd.broadcast_optimizer_state(optimizer, 0, model=embedding)
    gradients = [parameter.grad for parameter in parameters]
    assert gradients[0].tolist() == [0.0, 0.0, 0.0]
    assert gradients[1:] == [None, None]
    assert parameters[0].tolist() == [1.0, 1.0, 1.0]
    assert not optimizer.state
    sparse = torch.optim.SparseAdam([embedding.weight])
    hvd.broadcast_optimizer_state(sparse, 0)
    assert embedding.weight.grad is None


def objects() -> None:
    for root in range(hvd.size()):
        for thing in ({"rank": hvd.rank(), "list": [1, None]}, "x" * 100_000, lambda: hvd.rank()):
            expected = ({"rank": root, "list": [1, None]}, "x" * 100_000)
            got = hvd.broadcast_object(thing, root)
            assert callable(got) if callable(thing) else got in expected
            if hvd.rank() == root:
                assert got is thing
    assert hvd.broadcast_object(None if hvd.rank() else 7, root_rank=0, name="named") == 7
    assert hvd.broadcast_object(7 if hvd.rank() else None) is None
    last = hvd.size() - 1
    array = hvd.broadcast_object(np.arange(6.0).reshape(2, 3) * hvd.rank(), last)
    assert (array == np.arange(6.0).reshape(2, 3) * last).all()
    tensor = hvd.broadcast_object({"t": torch.full((2,), float(hvd.rank()))}, last)["t"]
    assert tensor.tolist() == [last, last]
    gathered = hvd.allgather_object({"rank": hvd.rank(), "pad": "y" * (1000 * hvd.rank())})
    assert [item["rank"] for item in gathered] == list(range(hvd.size()))
    assert hvd.allgather_object(torch.tensor([hvd.rank()]), name="t")[-1].item() == last
    assert hvd.allgather_object(None if hvd.rank() else 3) == [3, *[None] * last]


def large_object() -> None:
    """More than 64 MiB, of which every byte arrives."""
    length = 2**26 + 3
    thing = np.arange(length, dtype=np.uint8) if hvd.rank() == 0 else None
    got = hvd.broadcast_object(thing, 0)
    assert got.size == length
    assert (got[: 2**26].reshape(-1, 256) == np.arange(256, dtype=np.uint8)).all()
    assert got[-3:].tolist() == [0, 1, 2]


def objects_in_a_set() -> None:
    members = [rank for rank in range(hvd.size()) if rank > 0]
    if len(members) < 2:
        return
    tail = hvd.add_process_set(members)
    if hvd.rank() in members:
        assert hvd.broadcast_object(hvd.rank(), members[-1], process_set=tail) == members[-1]
        assert allgather_object(hvd.rank(), process_set=tail) == members
        error_of(lambda: hvd.broadcast_object(1, 0, process_set=tail), ValueError, "root rank")
    else:
        error_of(lambda: hvd.broadcast_object(1, 1, process_set=tail), ValueError, "not a member")


def run() -> list[str]:
    hvd.init(process_sets="dynamic")
    return run_checks(
        parameters,
        unusual_parameters,
        optimizer_state,
        distributed_optimizer_state,
        state_of_one_rank_alone,
        nested_state,
        options_that_change_type,
        state_that_no_broadcast_takes,
        fresh_optimizers,
        objects,
        large_object,
        objects_in_a_set,
        *torch_state_faults.CHECKS,
    )
