"""Rank programs: training with DistributedOptimizer gives what one process gives.

Every rank also trains a copy of the model alone, on the batch of all ranks, with the plain
optimizer. Both must end with the same weights up to float64 rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import hvdtune.torch as hvd

Model = torch.nn.Module
Optimizer = torch.optim.Optimizer
STEPS = 5
SHARE = 4  # rows of the batch that each rank sees


def new_model() -> Model:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
    ).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all ranks; ``share_of`` cuts out this rank's."""
    generator = torch.Generator().manual_seed(step)
    rows = SHARE * hvd.size()
    inputs = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(rows, 3, generator=generator, dtype=torch.float64)


def share_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[SHARE * hvd.rank() : SHARE * (hvd.rank() + 1)]


def loss_of(model: Model, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(inputs), targets)


def backward(model: Model, step: int = 0, factor: float = 1.0) -> None:
    """A backward pass over this rank's rows."""
    inputs, targets = batch(step)
    (factor * loss_of(model, share_of(inputs), share_of(targets))).backward()


def train_alone(model: Model, optimizer: Optimizer, steps: int = STEPS, clip: float = 0.0) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def train_share(model: Model, optimizer: Optimizer, steps: int = STEPS) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


def check_equal(got: Model, expected: Model, what: object, tolerance: float = 1e-12) -> None:
    for name, parameter in expected.named_parameters():
        other = got.get_parameter(name)
        difference = (other - parameter).abs().max().item()
        assert difference <= tolerance, (what, name, difference)
        every = hvd.allgather(other.detach().reshape(1, -1))
        assert (every == every[0]).all(), (what, name, "differs between ranks")


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def distributed(model: Model, make: Callable[[Any], Optimizer] = sgd, **options: Any) -> Any:
    named = model.named_parameters()
    return hvd.DistributedOptimizer(make(model.parameters()), named, **options)


def optimizer_classes() -> None:
    for make in (
        sgd,
        adam,
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
        lambda p: torch.optim.NAdam(p, lr=0.01),
    ):
        alone, together = new_model(), new_model()
        train_alone(alone, make(alone.parameters()))
        train_share(together, distributed(together, make))
        # Adam divides by square roots of tiny squares: rounding grows there.
        check_equal(together, alone, make(together.parameters()), 1e-9)


def options() -> None:
    alone = new_model()
    train_alone(alone, sgd(alone.parameters()))
    fp16 = hvd.Compression.fp16
    variants: list[tuple[Callable[[Model], dict[str, Any]], float]] = [
        (lambda m: {"groups": 1}, 1e-12),
        (lambda m: {"groups": 2}, 1e-12),
        (lambda m: {"groups": 100}, 1e-12),
        (lambda m: {"groups": [[m[0].weight, m[2].bias], [m[3].bias]]}, 1e-12),
        (lambda m: {"num_groups": 3}, 1e-12),
        (lambda m: {"gradient_predivide_factor": 2.5}, 1e-12),
        (lambda m: {"gradient_predivide_factor": 0.25, "groups": 2}, 1e-12),
        (lambda m: {"sparse_as_dense": True}, 1e-12),
        (lambda m: {"compression": fp16}, 1e-2),
        (lambda m: {"compression": fp16, "groups": 2}, 1e-2),
    ]
    for options_of, tolerance in variants:
        together = new_model()
        chosen = options_of(together)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer = distributed(together, **chosen)
        deprecated = any(w.category is DeprecationWarning for w in seen)
        assert deprecated == ("num_groups" in chosen)
        train_share(together, optimizer)
        check_equal(together, alone, list(chosen.items()), tolerance)


def without_names() -> None:
    alone, together = new_model(), new_model()
    train_alone(alone, sgd(alone.parameters()))
    split = [{"params": together[0].parameters()}, {"params": together[2:].parameters()}]
    train_share(together, hvd.DistributedOptimizer(sgd(split)))
    check_equal(together, alone, "no named_parameters")


def sum_of_gradients() -> None:
    alone, together = new_model(), new_model()
    train_alone(alone, sgd(alone.parameters()))
    optimizer = distributed(together, op=hvd.Sum)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(together, step, 1.0 / hvd.size())
        optimizer.step()
    check_equal(together, alone, "op=Sum")


def several_backward_passes() -> None:
    for groups in (None, 2):
        alone, together = new_model(), new_model()
        plain = sgd(alone.parameters())
        optimizer = distributed(together, backward_passes_per_step=2, groups=groups)
        for step in range(2 * STEPS):
            if step == STEPS + 1:  # from here on three passes a step
                optimizer.set_backward_passes_per_step(3)
            passes = 2 if step <= STEPS else 3
            plain.zero_grad()
            optimizer.zero_grad()
            for part in range(passes):
                inputs, targets = batch(10 * step + part)
                loss_of(alone, inputs, targets).backward()
                loss_of(together, share_of(inputs), share_of(targets)).backward()
            plain.step()
            optimizer.step()
        check_equal(together, alone, ("backward_passes_per_step", groups))


def fewer_backward_passes_than_announced() -> None:
    alone, together = new_model(), new_model()
    train_alone(alone, sgd(alone.parameters()))
    train_share(together, distributed(together, backward_passes_per_step=4))
    check_equal(together, alone, "step after one of four passes")


def clipping() -> None:
    alone, together = new_model(), new_model()
    train_alone(alone, sgd(alone.parameters()), clip=0.05)
    optimizer = distributed(together)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(together, step)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(together.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()
    check_equal(together, alone, "clipping")


def scaled_losses() -> None:
    if not hasattr(torch.amp, "GradScaler"):
        return
    alone, together = new_model(), new_model()
    train_alone(alone, sgd(alone.parameters()), clip=0.05)
    optimizer = distributed(together)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        scaler.scale(loss_of(together, share_of(inputs), share_of(targets))).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(together.parameters(), 0.05)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    check_equal(together, alone, "GradScaler")


def closures() -> None:
    alone, together = new_model(), new_model()
    plain, optimizer = sgd(alone.parameters()), distributed(together)

    def evaluate(model: Model, chosen: Any, whole: bool, step: int) -> torch.Tensor:
        inputs, targets = batch(step)
        chosen.zero_grad()
        cut = (lambda t: t) if whole else share_of
        loss = loss_of(model, cut(inputs), cut(targets))
        loss.backward()
        return loss

    for step in range(STEPS):
        plain.step(lambda step=step: evaluate(alone, plain, True, step))
        loss = optimizer.step(lambda step=step: evaluate(together, optimizer, False, step))
        assert loss is not None
    check_equal(together, alone, "closure")


def learning_rate_schedules() -> None:
    for early in (True, False):  # a schedule made before wrapping replaces step() in the instance
        alone, together = new_model(), new_model()
        plain = sgd(alone.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(plain, 2, 0.5)
        inner = sgd(together.parameters())
        if early:
            inner_schedule = torch.optim.lr_scheduler.StepLR(inner, 2, 0.5)
        optimizer = hvd.DistributedOptimizer(inner, together.named_parameters())
        if not early:
            inner_schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        with warnings.catch_warnings():
            # The schedule cannot see that the wrapper stepped.
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(3):
                train_alone(alone, plain, 2)
                train_share(together, optimizer, 2)
                schedule.step()
                inner_schedule.step()
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"] < 0.1
        check_equal(together, alone, ("schedule made early", early))


def frozen_and_thawed() -> None:
    alone, together = new_model(), new_model()
    for model in (alone, together):
        model[0].requires_grad_(False)
    weights = dict.fromkeys(("weight_decay",), 0.1)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, **weights)
    optimizer = distributed(together, lambda p: torch.optim.SGD(p, lr=0.1, **weights))

    def both(steps: int = 2) -> None:
        train_alone(alone, plain, steps)
        train_share(together, optimizer, steps)
        check_equal(together, alone, "frozen")

    before = together[0].weight.clone()
    both()
    assert (together[0].weight == before).all()
    for model in (alone, together):  # frozen at first, trained later
        model[0].requires_grad_(True)
    both()
    assert (together[0].weight != before).any()
    for model, chosen in ((alone, plain), (together, optimizer)):
        chosen.zero_grad()
        model[2].requires_grad_(False)  # trained at first, frozen later
    before = together[2].weight.clone()
    both()
    assert (together[2].weight == before).all()


def shared_parameter() -> None:
    def tied() -> Model:
        model = new_model()
        model.append(torch.nn.Linear(3, 6).double())
        model.append(torch.nn.Linear(6, 3).double())
        model[5].weight = torch.nn.Parameter(model[4].weight.detach().t().contiguous())
        model[3].bias = model[5].bias
        return model

    alone, together = tied(), tied()
    train_alone(alone, sgd(alone.parameters()))
    train_share(together, distributed(together))
    check_equal(together, alone, "one parameter in two places")


def strided_gradients() -> None:
    def convolutional() -> Model:
        torch.manual_seed(2)
        model = torch.nn.Sequential(
            torch.nn.Unflatten(1, (2, 1, 3)), torch.nn.Conv2d(2, 4, (1, 3)), torch.nn.Flatten()
        )
        model.append(torch.nn.Linear(4, 3))
        return model.double().to(memory_format=torch.channels_last)

    assert not convolutional()[1].weight.is_contiguous()
    for groups in (None, 1):
        alone, together = convolutional(), convolutional()
        train_alone(alone, sgd(alone.parameters()))
        train_share(together, distributed(together, groups=groups))
        check_equal(together, alone, "channels_last")


def two_optimizers() -> None:
    """A generator and a discriminator, as in a GAN: each is frozen while the other trains."""

    def pair() -> tuple[Model, Model]:
        torch.manual_seed(3)
        return torch.nn.Linear(6, 4).double(), torch.nn.Linear(4, 3).double()

    def train(models: tuple[Model, Model], optimizers: tuple[Any, Any], cut: Any) -> None:
        for step in range(2 * STEPS):
            trained = step % 2
            for index, model in enumerate(models):
                model.requires_grad_(index == trained)
            inputs, targets = (cut(tensor) for tensor in batch(step))
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.nn.functional.mse_loss(models[1](models[0](inputs)), targets).backward()
            optimizers[trained].step()

    alone, together = pair(), pair()
    train(alone, (sgd(alone[0].parameters()), adam(alone[1].parameters())), lambda tensor: tensor)
    first = hvd.DistributedOptimizer(
        sgd(together[0].parameters()), together[0].named_parameters("generator")
    )
    second = hvd.DistributedOptimizer(
        adam(together[1].parameters()), together[1].named_parameters("discriminator")
    )
    train(together, (first, second), share_of)
    for got, expected in zip(together, alone, strict=True):
        check_equal(got, expected, "two optimizers", 1e-9)


def later_parameter_group() -> None:
    alone, together = new_model(), new_model()
    plain, optimizer = sgd(alone[:3].parameters()), None
    optimizer = hvd.DistributedOptimizer(
        sgd(together[:3].parameters()), together[:3].named_parameters()
    )
    train_alone(alone, plain, 2)
    train_share(together, optimizer, 2)
    for model, chosen in ((alone, plain), (together, optimizer)):
        chosen.zero_grad()
        model.zero_grad()
        chosen.add_param_group({"params": list(model[3].parameters()), "lr": 0.01})
    train_alone(alone, plain, 3)
    train_share(together, optimizer, 3)
    check_equal(together, alone, "add_param_group")


def sparse_embeddings() -> None:
    def embedding() -> Model:
        torch.manual_seed(4)
        model = torch.nn.Sequential(torch.nn.EmbeddingBag(7, 5, sparse=True, mode="sum"))
        model.append(torch.nn.Linear(5, 2))
        return model.double()

    def words(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        return torch.randint(0, 7, (SHARE * hvd.size(), 3), generator=generator)

    for options in ({}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "groups": 1}):
        alone, together = embedding(), embedding()
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        optimizer = distributed(together, lambda p: torch.optim.SGD(p, lr=0.1), **options)
        for step in range(STEPS):
            for model, chosen, rows in (
                (alone, plain, words(step)),
                (together, optimizer, share_of(words(step))),
            ):
                chosen.zero_grad()
                model(rows).square().mean().backward()
                chosen.step()
            assert together[0].weight.grad.is_sparse
        check_equal(together, alone, options)
    # Without groups, a rank that did not use the embedding has no entries to add.
    together = embedding()
    optimizer = distributed(together, lambda p: torch.optim.SGD(p, lr=1.0))
    together(torch.tensor([[0]])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = together[0].weight.detach().clone()
    if hvd.rank() == 0:
        together[0](torch.tensor([[3]])).sum().backward()
    optimizer.step()
    expected = before.clone()
    expected[3] -= 1.0 / hvd.size()
    assert torch.allclose(together[0].weight, expected)


def parameters_that_one_rank_does_not_use() -> None:
    for groups in (None, 2):
        model = new_model()
        optimizer = distributed(model, lambda p: torch.optim.SGD(p, lr=1.0), groups=groups)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        inputs, _ = batch(0)
        half = model[:2] if hvd.rank() > 0 else model  # only rank 0 uses the layers behind
        half(inputs[:SHARE]).sum().backward()
        alone = torch.autograd.grad(model(inputs[:SHARE]).sum(), list(model.parameters()))
        first = torch.autograd.grad(model[:2](inputs[:SHARE]).sum(), list(model[:2].parameters()))
        optimizer.step()
        size = hvd.size()
        for index, (parameter, old) in enumerate(zip(model.parameters(), before, strict=True)):
            gradient = alone[index] / size
            if index < 2:
                gradient = gradient + first[index] * (size - 1) / size
            assert torch.allclose(parameter, old - gradient, atol=1e-12), index
        if hvd.rank() > 0:
            assert model[3].weight.grad is not None
        # Nobody used anything: all take part with zeros, and nothing changes.
        optimizer.zero_grad()
        now = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        assert all((p == q).all() for p, q in zip(model.parameters(), now, strict=True))


def process_set() -> None:
    model = new_model()
    optimizer = distributed(model, process_set=front, groups=2 if hvd.size() > 2 else None)
    inputs, targets = batch(0)
    optimizer.zero_grad()
    loss = loss_of(model, share_of(inputs), share_of(targets))
    own = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    loss.backward()
    optimizer.step()
    assert front.ranks
    for parameter, gradient in zip(model.parameters(), own, strict=True):
        every = hvd.allgather(gradient.unsqueeze(0))
        expected = every[front.ranks].mean(0) if front.included() else gradient
        assert torch.allclose(parameter.grad, expected, rtol=1e-12, atol=0)


def gradients_are_views_of_one_buffer() -> None:
    """Some programs keep all gradients in one flat tensor; results must arrive there."""
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        model = new_model()
        optimizer = distributed(model, compression=compression)
        parameters = list(model.parameters())
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        offset = 0
        for parameter in parameters:
            parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        backward(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
        every = hvd.allgather(flat.unsqueeze(0))
        assert (every == every[0]).all()
        assert (flat != 0).any()


front = hvd.ProcessSet([0])  # all ranks but the last; its ranks are set before init

ALONE = (optimizer_classes, options, without_names, several_backward_passes, clipping, closures)
CHECKS = (
    *ALONE,
    sum_of_gradients,
    fewer_backward_passes_than_announced,
    scaled_losses,
    learning_rate_schedules,
    frozen_and_thawed,
    shared_parameter,
    strided_gradients,
    two_optimizers,
    later_parameter_group,
    sparse_embeddings,
    parameters_that_one_rank_does_not_use,
    process_set,
    gradients_are_views_of_one_buffer,
)
