"""Rank programs: DistributedOptimizer in the ways that training scripts use it.

As in torch_training, every rank also trains a copy of the model alone on the batch of all ranks,
and both must end with the same weights.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import torch
from rank_programs.torch_cases import error_of
from rank_programs.torch_training import (
    STEPS,
    Model,
    adam,
    backward,
    batch,
    check_equal,
    distributed,
    loss_of,
    new_model,
    sgd,
    share_of,
    train_alone,
    train_share,
)

import hvdtune.torch as hvd
from hvdtune.torch.compression import Compressor
from hvdtune.torch.optimizer import overlap


def fused_and_foreach() -> None:
    for make in (
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        lambda p: torch.optim.Adamax(p, lr=0.01, maximize=True),
        lambda p: torch.optim.ASGD(p, lr=0.01),
    ):
        alone, together = new_model(), new_model()
        train_alone(alone, make(alone.parameters()))
        train_share(together, distributed(together, make))
        check_equal(together, alone, make(together.parameters()), 1e-9)


def a_step_without_arguments() -> None:
    class Plain(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            super().step()

    class Talkative(torch.optim.SGD):
        def step(self, closure: Any = None, *, told: list[str]) -> Any:
            told.append("step")
            return super().step(closure)

    told: list[str] = []
    alone = new_model()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 1)
    for kind, arguments in ((Plain, {}), (Talkative, {"told": told})):
        together = new_model()
        optimizer = distributed(together, lambda p, kind=kind: kind(p, lr=0.1))
        backward(together)
        optimizer.step(**arguments)
        check_equal(together, alone, kind)
    assert told == ["step"]


def line_search() -> None:
    """L-BFGS decides by the loss how often to evaluate; ranks see different ones."""
    search_for_minimum(line_search_fn="strong_wolfe")
    search_for_minimum(tolerance_change=1e-3)


def search_for_minimum(**options: Any) -> None:
    alone, together = new_model(), new_model()
    calls = []

    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=6, **options)

    plain, optimizer = lbfgs(alone.parameters()), distributed(together, lbfgs)

    def evaluate(model: Model, chosen: Any, step: int) -> torch.Tensor:
        chosen.zero_grad()
        cut = share_of if chosen is optimizer else lambda tensor: tensor
        loss = loss_of(model, *(cut(tensor) for tensor in batch(step)))
        loss.backward()
        calls.append(step)
        return loss

    for step in range(3):
        expected = plain.step(lambda step=step: evaluate(alone, plain, step))
        got = optimizer.step(lambda step=step: evaluate(together, optimizer, step))
        assert torch.allclose(got, expected, rtol=1e-9)
    assert len(set(hvd.allgather_object(len(calls)))) == 1
    check_equal(together, alone, options, 1e-7)


def other_reductions() -> None:
    """Min, Max and Product go to the gradients as they are."""
    stacked = torch.arange(1.0, hvd.size() + 1.0)
    for op, expected in (
        (hvd.Min, stacked.min()),
        (hvd.Max, stacked.max()),
        (hvd.Product, stacked.prod()),
        (hvd.Sum, stacked.sum()),
    ):
        for groups in (None, 1):
            weight = torch.nn.Parameter(torch.zeros(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([weight], lr=1.0), op=op, groups=groups
            )
            (weight.sum() * (hvd.rank() + 1.0)).backward()
            optimizer.step()
            assert torch.equal(weight.detach(), -expected.expand(2)), (op, groups)


def gradient_scaler(clipped_steps: int, fused: bool) -> None:
    """An infinity on one rank makes all ranks skip the step, also where the loss was finite.

    The first steps are clipped between synchronize() and step(), the others leave it to step().
    """

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=fused)

    alone, together = new_model(), new_model()
    optimizer, single = distributed(together, make), make(alone.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(STEPS):
        overflow = step == 2
        optimizer.zero_grad()
        inputs, targets = batch(step)
        loss = scaler.scale(loss_of(together, share_of(inputs), share_of(targets)))
        (loss * float("inf") if overflow and hvd.rank() == 0 else loss).backward()
        before = [p.detach().clone() for p in together.parameters()]
        clips = step < clipped_steps
        if not clips:
            scaler.step(optimizer)
        else:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(together.parameters(), 0.05)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        scaler.update()
        same = [torch.equal(p, q) for p, q in zip(together.parameters(), before, strict=True)]
        assert all(same) if overflow else not any(same), step
        if not overflow:
            single.zero_grad()
            loss_of(alone, *batch(step)).backward()
            if clips:
                torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            single.step()
    assert scaler.get_scale() == 32.0
    check_equal(together, alone, ("GradScaler", clipped_steps, fused), 1e-10)
    # A step skipped by the scaler leaves nothing behind for one without it.
    optimizer.zero_grad()
    backward(together, 7)
    optimizer.step()
    single.zero_grad()
    loss_of(alone, *batch(7)).backward()
    single.step()
    check_equal(together, alone, "after GradScaler", 1e-10)


def gradient_scalers() -> None:
    if hasattr(torch.amp, "GradScaler"):
        # 3: the step that is skipped has been synchronised, the next one has not.
        for clipped_steps in (0, 3, STEPS):
            for fused in (True, False):
                gradient_scaler(clipped_steps, fused)


def gradients_changed_too_early() -> None:
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        model = new_model()
        optimizer = distributed(model, compression=compression)
        train_share(model, optimizer, 1)  # from then on gradients are reduced while they come
        optimizer.zero_grad()
        backward(model)
        with torch.no_grad():
            model[2].weight.grad.mul_(0.5)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer.step()
        messages = [str(w.message) for w in seen if w.category is RuntimeWarning]
        assert len(messages) == 1, messages
        assert "'2.weight' was changed" in messages[0], messages


class Negative(Compressor):
    """Sends the tensor itself, and negates what comes back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return -tensor


def compressors_that_send_the_tensor_itself() -> None:
    alone, together = new_model(), new_model()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.1, maximize=True))
    optimizer = distributed(together, lambda p: torch.optim.SGD(p, lr=0.1), compression=Negative)
    train_share(together, optimizer)
    check_equal(together, alone, "a compressor that sends the tensor itself")


def step_hooks_see_reduced_gradients() -> None:
    alone, together = new_model(), new_model()

    def clip(chosen: Any, *unused: Any) -> None:
        torch.nn.utils.clip_grad_norm_(chosen.param_groups[0]["params"], 0.05)

    plain, optimizer = sgd(alone.parameters()), distributed(together)
    plain.register_step_pre_hook(clip)
    optimizer.register_step_pre_hook(clip)
    train_alone(alone, plain)
    train_share(together, optimizer)
    check_equal(together, alone, "clipping in a step hook")


def schedule_made_before_wrapping() -> None:
    model = new_model()
    inner = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a schedule ahead of its optimizer
        train_share(model, optimizer, 1)
        schedule.step()
        train_share(model, optimizer, 1)
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025


def compiled_models() -> None:
    alone = new_model()
    train_alone(alone, sgd(alone.parameters()), 3)
    for backend in ("eager", "aot_eager"):
        together = new_model()
        compiled = torch.compile(together, backend=backend)
        optimizer = distributed(together, groups=2 if backend == "eager" else None)
        for step in range(3):
            optimizer.zero_grad()
            backward(compiled, step)
            assert optimizer._reducer.is_pending
            optimizer.step()
        check_equal(together, alone, backend, 1e-9)


def checkpointed_activations() -> None:
    """The backward pass runs parts of the forward pass again."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = new_model()

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(self.inner[:2], rows, use_reentrant=False)
            return self.inner[2:](hidden)

    alone, together = new_model(), Checkpointed()
    train_alone(alone, sgd(alone.parameters()))
    train_share(together, distributed(together))
    check_equal(together.inner, alone, "checkpoint")


def optimizers_in_flight_at_once() -> None:
    """Two models with the same parameter names, or with none, reduced in one backward pass."""
    for named in (True, False):
        single, pair = [new_model(), new_model()], [new_model(), new_model()]
        plain = [sgd(model.parameters()) for model in single]
        optimizers = [
            hvd.DistributedOptimizer(
                sgd(model.parameters()), model.named_parameters() if named else None
            )
            for model in pair
        ]

        def losses(models: list[Model], cut: Any, step: int) -> torch.Tensor:
            inputs, targets = (cut(tensor) for tensor in batch(step))
            return loss_of(models[0], inputs, targets) + loss_of(models[1], -inputs, targets)

        for step in range(STEPS):
            for models, chosen, cut in (
                (single, plain, lambda t: t),
                (pair, optimizers, share_of),
            ):
                for optimizer in chosen:
                    optimizer.zero_grad()
                losses(models, cut, step).backward()
                for optimizer in reversed(chosen):
                    optimizer.step()
        for got, expected in zip(pair, single, strict=True):
            check_equal(got, expected, ("two optimizers", named))


def state_dicts() -> None:
    alone, together = new_model(), new_model()
    plain, optimizer = adam(alone.parameters()), distributed(together, adam)
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    saved = optimizer.state_dict()
    assert saved["param_groups"] == plain.state_dict()["param_groups"]
    assert saved["state"].keys() == plain.state_dict()["state"].keys()
    # From a distributed optimizer into a plain one, and back.
    middle = adam(together.parameters())
    middle.load_state_dict(pickle.loads(pickle.dumps(saved)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = hvd.DistributedOptimizer(middle, together.named_parameters())
    assert any("state" in str(w.message) for w in seen), "the state is not taken over"
    assert not optimizer.state
    optimizer.load_state_dict(middle.state_dict())
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    check_equal(together, alone, "state_dict", 1e-9)


def copies() -> None:
    alone, together = new_model(), new_model()
    plain, optimizer = sgd(alone.parameters()), distributed(together, groups=2)
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    twin_model, twin = copy.deepcopy((together, optimizer))
    assert twin.param_groups[0]["params"][0] is next(iter(twin_model.parameters()))
    shallow = copy.copy(optimizer)
    assert shallow.param_groups is optimizer.param_groups
    train_alone(alone, plain, 2)
    train_share(twin_model, twin, 2)
    check_equal(twin_model, alone, "deepcopy")
    train_share(together, shallow, 2)  # the same hooks and state as the original's
    check_equal(together, alone, "copy")
    restored = pickle.loads(pickle.dumps(optimizer))
    assert type(restored) is torch.optim.SGD
    assert not hasattr(restored, "_reducer")
    momentum = restored.state[restored.param_groups[0]["params"][0]]["momentum_buffer"]
    assert torch.equal(momentum, optimizer.state[together[0].weight]["momentum_buffer"])


def rank_alone_copies() -> None:
    """A copy on one rank, say to keep the best so far, disturbs nobody."""
    alone, together = new_model(), new_model()
    plain, optimizer = sgd(alone.parameters()), distributed(together)
    if hvd.rank() == 0:
        kept = copy.deepcopy((together, optimizer))
        distributed(new_model())
    train_alone(alone, plain)
    train_share(together, optimizer)
    check_equal(together, alone, "after a copy on rank 0")
    if hvd.rank() == 0:
        assert any(
            (p != q).any() for p, q in zip(kept[0].parameters(), together.parameters(), strict=True)
        )


def load_state_dict_in_the_middle() -> None:
    """Between backward() and step(): the step still has the gradients of that backward pass."""
    for op in (hvd.Average, hvd.Sum):
        alone, together = new_model(), new_model()
        plain, optimizer = sgd(alone.parameters()), distributed(together, op=op)
        factor = 1.0 / hvd.size() if op == hvd.Sum else 1.0
        for step in range(2):  # from the second step on gradients are reduced while they come
            plain.zero_grad()
            loss_of(alone, *batch(step)).backward()
            plain.step()
            optimizer.zero_grad()
            backward(together, step, factor)
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()
        check_equal(together, alone, "load_state_dict before step")
        # Dropped by zero_grad, though others may still be at it.
        optimizer.zero_grad()
        backward(together, 3, factor)
        optimizer.load_state_dict(optimizer.state_dict())
        for set_to_none in (True, False):
            optimizer.zero_grad(set_to_none=set_to_none)
        plain.zero_grad()
        inputs, targets = batch(1)
        loss_of(alone, inputs, targets).backward()
        plain.step()
        with warnings.catch_warnings():
            # The other ranks may not have begun what was given up: it says so.
            warnings.simplefilter("ignore", RuntimeWarning)
            backward(together, 1, factor)
        optimizer.step()
        check_equal(together, alone, "load_state_dict, zero_grad, backward")


def load_state_dict_after_uneven_passes() -> None:
    """Rank 0 did a backward pass that the others have not begun: it must not wait for them."""
    alone, model = new_model(), new_model()
    plain, optimizer = sgd(alone.parameters()), distributed(model)
    train_alone(alone, plain, 1)
    train_share(model, optimizer, 1)
    optimizer.zero_grad()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if hvd.rank() == 0:
            for _ in range(2):  # the second one finds the first one under way
                backward(model)
                optimizer.load_state_dict(optimizer.state_dict())
                optimizer.zero_grad()
        hvd.barrier()  # the others are here without it
    if hvd.rank() == 0:
        messages = [str(w.message) for w in seen if w.category is RuntimeWarning]
        if overlap.wanted():
            assert len(messages) == 1, messages
            assert "The reduction of parameter '3." in messages[0], messages
            assert "was given up" in messages[0], messages
        else:
            assert messages == []  # nothing was under way
    else:
        backward(model)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
    hvd.barrier()
    train_alone(alone, plain)
    train_share(model, optimizer)
    check_equal(model, alone, "after uneven backward passes that evened out")


def uneven_data() -> None:
    """Ranks that have run out of batches join; the others go on with zeros for them."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    size = hvd.size()
    # In the first epoch rank 0 has no batch at all, and knows nothing of what the others agree on.
    for epoch, steps in enumerate((hvd.rank(), hvd.rank() + 1, 1)):
        before = weight.detach().clone()
        for _ in range(steps):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        last = hvd.join()
        assert epoch == 2 or last == size - 1
        missing = 1 if epoch == 0 else 0  # ranks that have joined already in the first step
        means = [(size - missing - step) / size for step in range(steps)]
        expected = before - (1.0 if epoch == 2 else sum(means))
        assert torch.allclose(weight.detach(), expected), epoch
        hvd.broadcast_(weight.detach(), size - 1)


def scalars_and_empty_parameters() -> None:
    for groups in (None, 1):
        scalar = torch.nn.Parameter(torch.tensor(2.0))
        empty = torch.nn.Parameter(torch.zeros(0, 3))
        named = [("scalar", scalar), ("empty", empty)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([scalar, empty], lr=1.0), named, groups=groups
        )
        for step in range(2):
            optimizer.zero_grad()
            (scalar * hvd.rank() + empty.sum()).backward()
            optimizer.step()
            assert scalar.item() == 2.0 - (step + 1) * (hvd.size() - 1) / 2
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    hvd.DistributedOptimizer(torch.optim.SGD([frozen], lr=1.0)).step()
    assert torch.equal(frozen, torch.ones(2))


def two_optimizers_for_one_model() -> None:
    """Both would reduce the same gradients: refused by name, and either works without the other."""
    alone, model = new_model(), new_model()
    plain = sgd(alone.parameters())
    first, second = distributed(model), distributed(model)
    train_alone(alone, plain, 1)
    train_share(model, first, 1)
    second.synchronize()
    first.zero_grad()
    error_of(lambda: backward(model), ValueError, "'3.", "same name as another tensor")
    for optimizer in (first, second):
        optimizer.synchronize()
        optimizer.zero_grad()
    del optimizer, second
    train_alone(alone, plain)
    train_share(model, first)
    check_equal(model, alone, "the one that is left")


def another_job() -> None:
    """After a shutdown and another init the same optimizer goes on; nothing waits for the old."""
    alone, together = new_model(), new_model()
    plain, optimizer = sgd(alone.parameters()), distributed(together)
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    backward(together, 3)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    check_equal(together, alone, "after shutdown and init")


def ranks_with_different_parameters() -> None:
    """Frozen on one rank only: all ranks learn which, nobody waits for ever."""
    first, between = min(name for name, _ in new_model().named_parameters()), "2.weight"
    others = ", ".join(map(str, range(1, hvd.size())))
    # In the last case the ranks have equal numbers of parameters.
    for on_rank_0, on_others in ((first, None), (between, None), (first, between)):
        model = new_model()
        frozen = on_rank_0 if hvd.rank() == 0 else on_others
        if frozen:
            model.get_parameter(frozen).requires_grad_(False)
        optimizer = distributed(model)
        backward(model)
        error_of(
            optimizer.step,
            hvd.HorovodInternalError,
            "different parameters that require gradients",
            f"{on_rank_0} (rank {others} only)",
            f"{on_others} (rank 0 only)" if on_others else "",
        )
    assert torch.equal(
        hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size()))
    )


CHECKS = (
    fused_and_foreach,
    a_step_without_arguments,
    line_search,
    other_reductions,
    gradient_scalers,
    gradients_changed_too_early,
    compressors_that_send_the_tensor_itself,
    step_hooks_see_reduced_gradients,
    schedule_made_before_wrapping,
    checkpointed_activations,
    optimizers_in_flight_at_once,
    state_dicts,
    copies,
    rank_alone_copies,
    load_state_dict_in_the_middle,
    load_state_dict_after_uneven_passes,
    uneven_data,
    scalars_and_empty_parameters,
    two_optimizers_for_one_model,
    ranks_with_different_parameters,
    compiled_models,
    another_job,
)
