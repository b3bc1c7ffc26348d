"""Rank programs: DistributedOptimizer(gradient_as_buffer_view=True).

What it trains must have the same bits as without. Gradients are reduced in shared memory from the
second step on, which only the timeline can tell.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rank_programs.torch_cases import error_of, run_checks
from rank_programs.torch_training import backward, distributed, front, new_model

import hvdtune.torch as hvd
from hvdtune.torch.optimizer import gradient_views

Model = torch.nn.Module


def trained(
    build: Callable[[], Model], train: Callable[[Model, Any], None], **options: Any
) -> None:
    """Train twice, with and without, and compare the weights bit by bit on all ranks."""
    weights = []
    for views in (False, True):
        model = build()
        train(model, distributed(model, gradient_as_buffer_view=views, **options))
        weights.append([p.detach().clone() for p in model.parameters()])
    for plain, viewed in zip(*weights, strict=True):
        assert plain.equal(viewed), options
        every = hvd.allgather(viewed.reshape(1, -1))
        assert (every == every[0]).all(), options


def plain_steps(model: Model, optimizer: Any, to_none: bool = True) -> None:
    for step in range(5):
        optimizer.zero_grad(set_to_none=to_none)
        backward(model, step)
        optimizer.step()


def options() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"op": hvd.Sum},
        {"op": hvd.Min},
        {"groups": 2},
        {"gradient_predivide_factor": 2.5},
        {"sparse_as_dense": True},
    ]
    if hvd.size() > 1:
        variants.append({"process_set": front})
    for variant in variants:
        for to_none in (True, False):
            weights = []
            for views in (False, True):
                model = new_model()
                optimizer = distributed(model, gradient_as_buffer_view=views, **variant)
                plain_steps(model, optimizer, to_none)
                weights.append([p.detach().clone() for p in model.parameters()])
            assert all(a.equal(b) for a, b in zip(*weights, strict=True)), variant


def types() -> None:
    def mixed() -> Model:
        model = new_model()
        for index, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32)):
            extra = torch.randn(37, generator=torch.Generator().manual_seed(index)).to(dtype)
            model.register_parameter(f"extra{index}", torch.nn.Parameter(extra))
        return model

    def train(model: Model, optimizer: Any) -> None:
        for step in range(4):
            optimizer.zero_grad()
            backward(model, step)
            for index in range(3):
                extra = model.get_parameter(f"extra{index}")
                (extra.double() * (0.1 * hvd.rank() + step + index)).sum().backward()
            optimizer.step()

    trained(mixed, train)
    trained(mixed, train, groups=1)


def accumulation_and_clipping() -> None:
    def train(model: Model, optimizer: Any) -> None:
        for step in range(4):
            optimizer.zero_grad()
            backward(model, 2 * step)
            backward(model, 2 * step + 1)
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()

    trained(new_model, train, backward_passes_per_step=2)


def scaler() -> None:
    def train(model: Model, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(5):
            optimizer.zero_grad()
            inputs = torch.full((2, 6), 0.1 * step + hvd.rank(), dtype=torch.float64)
            loss = model(inputs).square().mean()
            # One rank's gradient is infinite once: all ranks skip the step.
            factor = float("inf") if step == 2 and hvd.rank() == 0 else 1.0
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()

    trained(lambda: new_model().float().double(), train)


def graphs_that_change() -> None:
    """Parameters that a rank does not use, that are frozen for a while, and that come later."""

    def train(model: Model, optimizer: Any) -> None:
        spare = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
        for step in range(6):
            optimizer.zero_grad()
            model[3].bias.requires_grad_(step not in (2, 3))
            backward(model, step)
            if step % 2 == 0 and hvd.rank() == 0:
                (spare * step).sum().backward()
            if step == 3:
                model.register_parameter("spare", spare)
                optimizer.add_param_group({"params": [spare]})
            optimizer.step()

    trained(new_model, train)


def sparse_gradients() -> None:
    def embedding() -> Model:
        torch.manual_seed(1)
        first = torch.nn.Embedding(10, 6, sparse=True)
        return torch.nn.Sequential(first, torch.nn.Linear(6, 2)).double()

    def train(model: Model, optimizer: Any) -> None:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.tensor([step, hvd.rank() + step])).square().sum().backward()
            optimizer.step()

    plain = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    for options in ({}, {"sparse_as_dense": True}):
        trained(embedding, train, make=plain, **options)


def given_up_and_copied() -> None:
    def train(model: Model, optimizer: Any) -> None:
        for step in range(5):
            optimizer.zero_grad()
            backward(model, step)
            if step == 2:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()
        twin, other = copy.deepcopy((model, optimizer))
        plain_steps(twin, other)
        plain_steps(model, optimizer)
        for one, two in zip(twin.parameters(), model.parameters(), strict=True):
            assert one.equal(two)

    trained(new_model, train)


def two_optimizers_by_turns() -> None:
    def train(model: Model, optimizer: Any) -> None:
        other_model = new_model()
        other = distributed(other_model, gradient_as_buffer_view=True)
        for step in range(4):
            for m, o in ((model, optimizer), (other_model, other)):
                o.zero_grad()
                backward(m, step)
            for o in (other, optimizer):
                o.step()

    trained(new_model, train)


def places() -> None:
    """Gradients stay where they are, behave as tensors of their own, and outlive the optimizer."""
    model = new_model()
    optimizer = distributed(model, gradient_as_buffer_view=True)
    plain_steps(model, optimizer)
    first = [p.grad for p in model.parameters()]
    plain_steps(model, optimizer)
    ordered = sorted(p.grad.data_ptr() for p in model.parameters())
    nbytes = {p.grad.data_ptr(): p.grad.nbytes for p in model.parameters()}
    for before, parameter in zip(first, model.parameters(), strict=True):
        assert parameter.grad is before
        assert not parameter.grad._is_view()
    assert all(a + nbytes[a] == b for a, b in pairwise(ordered))
    versions = [g._version for g in first]
    first[0].add_(1)
    assert first[1]._version == versions[1]
    del optimizer
    first[0].fill_(3)
    assert (first[0] == 3).all()


def another_default_device() -> None:
    """Gradients have their places in memory, whatever the default device."""

    def steps(model: Model, optimizer: Any) -> None:
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step)
            with torch.device("meta"):
                optimizer.step()

    trained(new_model, steps)


def only_some_ranks() -> None:
    """A rank without views makes all of them pack; it costs nobody the result."""
    weights = []
    for views in (False, hvd.rank() != 0):
        model = new_model()
        plain_steps(model, distributed(model, gradient_as_buffer_view=views))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(a.equal(b) for a, b in zip(*weights, strict=True))


def refusals() -> None:
    for options in ({"compression": hvd.Compression.fp16}, {"op": hvd.Adasum}):
        model = new_model()
        error_of(
            partial(distributed, model, gradient_as_buffer_view=True, **options),
            ValueError,
            "gradient_as_buffer_view",
        )


def without_memory() -> None:
    """What cannot be had is not needed."""

    def refuse(size: int) -> Any:
        raise ValueError("no memory to share")

    allocate = gradient_views.memory.allocate_shared
    gradient_views.memory.allocate_shared = refuse
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained(new_model, plain_steps)
    finally:
        gradient_views.memory.allocate_shared = allocate
        gradient_views._warned = False
    texts = [str(warning.message) for warning in caught]
    assert [t for t in texts if "has no effect: no memory to share" in t], texts


def in_place_from_the_second_step_on() -> None:
    """By the timeline: what is packed has an activity for it."""
    path = Path(tempfile.gettempdir(), f"hvdtune-views-{os.environ['HVDTUNE_JOB_ID']}.json")
    hvd.start_timeline(str(path))
    model = new_model()
    model[0].weight.requires_grad_(False)
    optimizer = distributed(model, gradient_as_buffer_view=True)
    for to_none in (True, False):
        plain_steps(model, optimizer, to_none)
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() != 0:
        return
    events = json.loads(path.read_text())
    path.unlink()
    counts = {
        name: sum(event.get("name") == name for event in events)
        for name in ("SHM_ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER")
    }
    gradients = len(list(model.parameters())) - 1
    # Ten steps, and what the ranks agreed by.
    others = counts["SHM_ALLREDUCE"] - 10 * gradients
    assert others >= 0, counts
    # In the first step nobody knows the tensors yet.
    assert counts["MEMCPY_IN_FUSION_BUFFER"] == gradients + others, counts
    assert counts["MEMCPY_OUT_FUSION_BUFFER"] == gradients + others, counts


def starting_over() -> None:
    """Gradients of the old job are ordinary memory; those of the new one are reduced in place."""
    model = new_model()
    optimizer = distributed(model, gradient_as_buffer_view=True)
    plain_steps(model, optimizer)
    gradient = model[0].weight.grad
    hvd.shutdown()
    gradient.fill_(1)
    hvd.init()
    plain_steps(model, optimizer)
    assert model[0].weight.grad is not gradient
    assert (gradient == 1).all()
    alone = new_model()
    twin = distributed(alone)
    plain_steps(alone, twin)
    plain_steps(alone, twin)
    for one, two in zip(model.parameters(), alone.parameters(), strict=True):
        assert one.equal(two)


ALL = (
    options,
    types,
    accumulation_and_clipping,
    scaler,
    graphs_that_change,
    sparse_gradients,
    given_up_and_copied,
    two_optimizers_by_turns,
    places,
    another_default_device,
    only_some_ranks,
    refusals,
    without_memory,
    in_place_from_the_second_step_on,
    starting_over,
)


def several() -> list[str]:
    """Everything; needs HOROVOD_TIMELINE=DYNAMIC."""
    front.ranks = list(range(int(os.environ["HOROVOD_SIZE"]) - 1))
    hvd.init(process_sets=[front])
    return run_checks(*ALL)


def alone() -> list[str]:
    """One process reduces nothing, and elastic jobs may begin with one."""
    hvd.init()
    names = run_checks(options, accumulation_and_clipping)
    os.environ["HOROVOD_ELASTIC"] = "1"
    return names + run_checks(accumulation_and_clipping, graphs_that_change, starting_over)


def until_killed() -> str:
    """Reduce in place until a rank dies; what the survivors are told."""
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(700, 700) for _ in range(4)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        model.named_parameters(),
        gradient_as_buffer_view=True,
    )
    inputs = torch.ones(2, 700)
    for step in range(1_000_000):
        if step == 3:
            print("running", flush=True)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        try:
            optimizer.step()
        except hvd.HorovodInternalError as error:
            # Still this process's memory, whoever was writing to it.
            assert all(
                p.grad is not None and p.grad.zero_().eq(0).all() for p in model.parameters()
            )
            return str(error)
    raise AssertionError("nobody was killed")
