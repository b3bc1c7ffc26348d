"""Training whose time goes to known phases, for the recording of these."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import hvdtune.torch as hvd

STEPS = 12


class Slow(torch.autograd.Function):
    """Sleeps in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Layer(torch.nn.Module):
    """Sleeps forward and backward."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.times = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.times[0])
        return Slow.apply(x, self.times[1])


class Samples(Dataset):  # type: ignore[type-arg]
    """Takes a while for each batch of 2."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds / 2)
        return torch.ones(8)


class SlowSGD(torch.optim.SGD):
    """Sleeps in each update."""

    seconds = 0.0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        time.sleep(self.seconds)
        return super().step(closure)


def train(load: float, backward: dict[int, float], update: float) -> list[bool]:
    """Steps that take so long to load, on these ranks in the backward pass, and to update. Whether
    PyTorch is as it was: before, while it is recorded, behind."""
    as_before = [_is_untouched()]
    hvd.init()
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), Layer(0.004, backward.get(hvd.rank(), 0.004)), torch.nn.Linear(8, 1)
    )
    optimizer = SlowSGD(model.parameters(), lr=0.01)
    optimizer.seconds = update
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    as_before.append(_is_untouched())
    for batch in DataLoader(Samples(load), batch_size=2):
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
    hvd.shutdown()
    as_before.append(_is_untouched())
    return as_before


_PARTS = (
    (torch.autograd, "backward"),
    (torch, "save"),
    (torch, "compile"),
    (DataLoader, "__iter__"),
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
)
_ORIGINALS = [getattr(owner, name) for owner, name in _PARTS]


def _is_untouched() -> bool:
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    found = [getattr(owner, name) for owner, name in _PARTS]
    return found == _ORIGINALS and not hooks


def everything_still_works() -> list[str]:
    """What the hooks are around behaves as it does without them; returns what does not."""
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    wrong = []

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step(torch.ones(2, 8))
    wrong += _check(_raised(lambda: torch.ones(1).backward()) == "RuntimeError", "backward raises")
    iterator = iter(DataLoader([1, 2], batch_size=2))
    wrong += _check(next(iterator).tolist() == [1, 2], "a batch")
    wrong += _check(_raised(lambda: next(iterator)) == "StopIteration", "the end of a loader")
    twin = copy.deepcopy(model)
    wrong += _check(not twin._forward_pre_hooks and not twin[0]._forward_pre_hooks, "copies")
    pickle.loads(pickle.dumps(model))
    with hvd.mark("validation"), torch.no_grad():
        model(torch.ones(2, 8))
    with torch.no_grad():
        model(torch.ones(2, 8))
    thread = threading.Thread(target=lambda: twin(torch.ones(2, 8)).sum().backward())
    thread.start()
    thread.join()
    step(torch.ones(2, 8))
    compiled = torch.compile(lambda x: model(x).sum() * 2, backend=_count, fullgraph=True)
    for _ in range(4):
        optimizer.zero_grad()
        compiled(torch.ones(2, 8)).backward()
        optimizer.step()
    wrong += _check(len(_graphs) == 1, f"{len(_graphs)} graphs")
    optimizer.step(lambda: (optimizer.zero_grad(), model(torch.ones(2, 8)).sum().backward())[0])
    loaded = list(DataLoader([1.0, 2.0], num_workers=1))
    wrong += _check(len(loaded) == 2, "workers")
    hvd.shutdown()
    return wrong


_graphs: list[Any] = []


def _count(graph: Any, _inputs: Any) -> Any:
    _graphs.append(graph)
    return graph


def _check(holds: bool, what: str) -> list[str]:
    return [] if holds else [what]


def _raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""
