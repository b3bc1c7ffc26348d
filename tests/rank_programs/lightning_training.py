"""Checks of a rank program: training over the ranks gives the weights that one process gets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from rank_programs.lightning_cases import (
    STEPS,
    Module,
    assert_equal,
    assert_trains_alike,
    fit,
)
from rank_programs.torch_cases import error_of
from rank_programs.torch_optimizer_recipes import Negative
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler as schedules
from torch.utils.checkpoint import checkpoint

import hvdtune.torch as hvd
from hvdtune.lightning import HvdtuneStrategy


def plain() -> None:
    assert_trains_alike(Module, max_epochs=2)


def accumulation_and_clipping() -> None:
    # 5 batches: the last of an epoch is a step by itself.
    assert STEPS % 2 == 1
    assert_trains_alike(Module, max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5)
    assert_trains_alike(Module, gradient_clip_val=0.02, gradient_clip_algorithm="value")


class Adam(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def precisions() -> None:
    # Each product is rounded to bfloat16, 8 bits; the steps of Adam are about as long as lr.
    assert_trains_alike(Adam, precision="bf16-mixed", tolerance=0.02)
    assert_trains_alike(Adam, precision="64-true", tolerance=1e-12)


class Lbfgs(Module):
    """LBFGS evaluates until the loss suits it: the ranks must agree on the loss."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(
            self.parameters(), lr=0.3, max_iter=4, history_size=3, line_search_fn="strong_wolfe"
        )


def line_search() -> None:
    # In float64: every step takes decisions that make rounding grow.
    assert_trains_alike(Lbfgs, precision="64-true", tolerance=1e-9)


class Unused(Module):
    """One layer is used by rank 0 alone, another by nobody."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sometimes = torch.nn.Linear(4, 1, bias=False)
        self.never = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = mse_loss(self.net(batch[0]), batch[1])
        return loss + self.sometimes(batch[0]).mean() if self.global_rank == 0 else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.5)


def parameters_without_gradient() -> None:
    module = Unused(0)
    before = [p.detach().clone() for p in (*module.never.parameters(), module.sometimes.weight)]
    fit(module, True, limit_train_batches=1)
    # Not even weight decay: without a gradient, one process would leave them alone too.
    assert torch.equal(module.never.weight, before[0])
    assert torch.equal(module.never.bias, before[1])
    assert module.never.weight.grad is None
    shares = hvd.allgather_object(module.sometimes.weight.tolist())
    assert all(share == shares[0] for share in shares)
    assert not torch.equal(module.sometimes.weight, before[2])


class Sparse(Module):
    """An embedding with sparse gradients; only rank 0 uses a second one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.embedding = torch.nn.Embedding(5, 4, sparse=True)
        self.second = torch.nn.Embedding(3, 4, sparse=True)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        rows = (batch[0][:, 0].abs() * 2).long().clamp(max=4)
        loss = mse_loss(self.net(batch[0] + self.embedding(rows)), batch[1])
        if self.global_rank != 0:
            return loss
        # For all ranks; the average divides it by their number again.
        return loss + self.trainer.world_size * self.second(torch.tensor([1])).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Mixed(Module):
    """An embedding with sparse gradients, which the last rank also uses as a whole."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.embedding = torch.nn.Embedding(5, 4, sparse=True)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        rows = (batch[0][:, 0].abs() * 2).long().clamp(max=4)
        loss = mse_loss(self.net(batch[0] + self.embedding(rows)), batch[1])
        size = self.trainer.world_size
        if self.global_rank != size - 1:
            return loss
        return loss + size * self.embedding.weight.square().mean()


def sparse_gradients() -> None:
    assert_trains_alike(Sparse)
    # Momentum is kept in the gradient's layout, and must be dense on all ranks.
    assert_trains_alike(Mixed)
    alone, module = Sparse(0), Sparse(0)
    fit(alone, False)
    fit(module, True, strategy=HvdtuneStrategy(sparse_as_dense=True))
    assert_equal(module, alone, "sparse_as_dense")
    assert module.second.weight.grad is not None
    assert module.second.weight.grad.is_sparse


class Checkpointed(Module):
    """Computes the activations of its layers again in the backward pass."""

    times = 1
    reentrant = True

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs = batch[0].requires_grad_()
        outputs = [
            checkpoint(self.net, inputs, use_reentrant=self.reentrant) for _ in range(self.times)
        ]
        return mse_loss(torch.cat(outputs), torch.cat([batch[1]] * self.times))


class Twice(Checkpointed):
    times = 2


class TwiceNotReentrant(Twice):
    reentrant = False


def activation_checkpointing() -> None:
    assert_trains_alike(Checkpointed)
    assert_trains_alike(TwiceNotReentrant)
    said = error_of(lambda: fit(Twice(0), True), RuntimeError, "'net.", "use_reentrant=False")
    assert "computed twice in one backward pass" in said
    fit(Module(0), True)  # the ranks are still together


class WithGraph(Module):
    """Its gradients are part of a graph, as second derivatives need them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.manual_backward(loss, create_graph=True)
        gradient = self.net[0].weight.grad
        assert gradient is not None
        assert gradient.requires_grad
        optimizer.step()


class Doubles(Module):
    """Changes gradients as soon as they are there, when the ranks already reduce them."""

    def on_train_start(self) -> None:
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(_double)


def _double(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def gradients_that_others_use() -> None:
    assert_trains_alike(WithGraph)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Doubles(0), True)
    said = [str(one.message) for one in caught if "while it was being reduced" in str(one.message)]
    assert len(said) == 1, said
    assert "in on_after_backward()" in said[0], said


class Gan(Module):
    """Two optimizers by hand, with and without toggling, gradients added up over two batches."""

    toggle = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.automatic_optimization = False
        self.generator = torch.nn.Linear(4, 4)
        self.critic = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
        self.unused = torch.nn.Linear(2, 2)

    def training_step(self, batch: Any, index: int) -> None:
        inputs = batch[0]
        first, second = self.optimizers()
        if self.toggle:
            self.toggle_optimizer(first)
        loss = -self.critic(self.generator(inputs)).mean()
        first.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(first, 0.1, "norm")
        first.step()
        if self.toggle:
            self.untoggle_optimizer(first)
        step_now = index % 2 == 1
        with second.toggle_model(sync_grad=step_now):
            if not step_now:
                second.zero_grad()
            fake = self.critic(self.generator(inputs).detach())
            self.manual_backward(fake.mean() - self.critic(inputs).square().mean())
        if step_now:
            second.step()

    def configure_optimizers(self) -> Any:
        rest = [*self.critic.parameters(), *self.unused.parameters()]
        return (
            torch.optim.Adam(self.generator.parameters(), lr=0.01),
            torch.optim.SGD(rest, lr=0.1, weight_decay=0.1),
        )


class ToggledGan(Gan):
    toggle = True


class DirectBackward(Module):
    """Goes around ``manual_backward``; the step inside has unreduced gradients to deal with."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse_loss(self.net(batch[0]), batch[1])
            loss.backward()
            return loss

        with optimizer.toggle_model(sync_grad=False):
            optimizer.step(closure)


def manual_optimization() -> None:
    for kind in (Gan, ToggledGan, DirectBackward):
        assert_trains_alike(kind)


class Normalised(Module):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.net.insert(1, torch.nn.BatchNorm1d(6))


def batch_norm() -> None:
    module = Normalised(hvd.rank())
    layer, weight = module.net[1], module.net[1].weight
    strategy = HvdtuneStrategy()
    trainer = fit(module, True, strategy=strategy, sync_batchnorm=True)
    assert trainer.strategy is strategy
    # Afterwards the module is what it was.
    assert module.net[1] is layer
    assert module.net[1].weight is weight
    assert type(layer) is torch.nn.BatchNorm1d
    assert_trains_alike(Normalised, tolerance=1e-5, sync_batchnorm=True)


def learning_rates() -> None:
    """The name "horovod" scales as Lightning's own strategy did; "hvdtune" does not."""
    for name, factor in (("hvdtune", 1), ("horovod", hvd.size())):
        # Lightning looks for its environment, and starts MPI on the way, unless it is given one.
        options = {"strategy": name, "plugins": [LightningEnvironment()]}
        trainer = fit(Module(0), True, max_epochs=2, **options)
        assert isinstance(trainer.strategy, HvdtuneStrategy)
        [group] = trainer.optimizers[0].param_groups
        assert group["lr"] == 0.05 * 0.25 * factor, (name, group["lr"])


class Scheduled(Module):
    """Its learning rate follows a schedule that is given."""

    def __init__(self, schedule: Callable[[Any], Any]) -> None:
        super().__init__(0)
        self.schedule = schedule

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [self.schedule(optimizer)]


# Schedules that keep learning rates elsewhere than in base_lrs of their own.
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 1.0, 1.0, 1), schedules.CosineAnnealingLR(o, 10)], [1]
    ),
    "chain": lambda o: schedules.ChainedScheduler(
        [schedules.LambdaLR(o, lambda epoch: 0.5**epoch)]
    ),
    "cycles": lambda o: schedules.CyclicLR(o, base_lr=0.01, max_lr=0.05, step_size_up=4),
}


def learning_rates_of_schedules() -> None:
    for name, schedule in SCHEDULES.items():
        alone = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
        course = schedule(alone)
        for _epoch in range(2):
            alone.step()
            course.step()
        strategy = HvdtuneStrategy(scale_lr=True)
        options = {"strategy": strategy, "max_epochs": 2, "limit_train_batches": 1}
        trainer = fit(Scheduled(schedule), True, **options)
        [group] = trainer.optimizers[0].param_groups
        expected = alone.param_groups[0]["lr"] * hvd.size()
        assert math.isclose(group["lr"], expected), (name, group["lr"], expected)


class Maximizes(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, maximize=True)


class Minimizes(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def compressed() -> None:
    strategy = HvdtuneStrategy(compression=hvd.Compression.fp16)
    module, alone = Module(0), Module(0)
    fit(module, True, strategy=strategy)
    fit(alone, False)
    difference = float((module.net[0].weight - alone.net[0].weight).detach().abs().max())
    assert 0.0 < difference < 1e-2, difference
    opposite, alone = Minimizes(0), Maximizes(0)
    fit(opposite, True, strategy=HvdtuneStrategy(compression=Negative))
    fit(alone, False)
    assert_equal(opposite, alone, "a compressor that sends the tensor itself")


CHECKS = (
    plain,
    accumulation_and_clipping,
    precisions,
    line_search,
    parameters_without_gradient,
    sparse_gradients,
    activation_checkpointing,
    gradients_that_others_use,
    manual_optimization,
    batch_norm,
    learning_rates,
    learning_rates_of_schedules,
    compressed,
)
