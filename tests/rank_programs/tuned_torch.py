"""Training with PyTorch, elastic training and Lightning's, for tests of the autotuner."""

from __future__ import annotations

from typing import Any

import torch
from rank_programs.tuned import compute, ended, read
from torch import nn

import hvdtune.torch as hvd
from hvdtune.core import tuning
from hvdtune.core.exceptions import HorovodInternalError

LAYERS = 20


def network(seed: int, layers: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))


def optimizer_of(model: nn.Module, passes: int = 1) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        model.named_parameters(),
        backward_passes_per_step=passes,
    )


def with_everything(log: str) -> dict[str, Any]:
    """Gradient accumulation, a second optimizer in every third step, evaluation, checkpoints.

    Until the log is complete; the weights' sums and the settings in force at the end.
    """
    hvd.init()
    torch.set_num_threads(1)
    model, other = network(0, LAYERS), network(1, 2)
    main, second = optimizer_of(model, passes=2), optimizer_of(other)
    rows = torch.ones(4, 8) * (hvd.rank() + 1)
    steps = 0
    while not ended(log, steps):
        for _ in range(2):
            model(rows).square().mean().backward()
        main.step()
        main.zero_grad()
        if steps % 3 == 0:
            second.zero_grad()
            other(rows).square().mean().backward()
            second.step()
        if steps % 50 == 49:
            for _ in range(20):
                hvd.allreduce(torch.ones(1), op=hvd.Average)
            hvd.broadcast_object(model.state_dict(), root_rank=0)
        compute()
        steps += 1
    in_force = tuning.current()
    sums = [float(sum(p.sum() for p in one.parameters())) for one in (model, other)]
    hvd.shutdown()
    return {"in_force": in_force, "sums": sums, "steps": steps}


def elastically(log: str) -> dict[str, Any]:
    """Two rounds of elastic training, each until tuning is over; the first ends in a failure."""
    hvd.init()
    torch.set_num_threads(1)
    model = network(0, LAYERS)
    optimizer = optimizer_of(model)
    state: Any = hvd.elastic.TorchState(model, optimizer, step=0, rounds=0)
    rows = torch.ones(4, 8) * (hvd.rank() + 1)
    rounds = 0

    @hvd.elastic.run
    def train(state: Any) -> None:
        nonlocal rounds
        rounds += 1
        while not ended(log, state.step, rounds):
            state.optimizer.zero_grad()
            state.model(rows).square().mean().backward()
            state.optimizer.step()
            state.step += 1
            compute()
            if state.step % 10 == 0:
                state.commit()
        if rounds == 1:
            raise HorovodInternalError("made up by a test")

    train(state)
    in_force = tuning.current()
    hvd.shutdown()
    return {"in_force": in_force, "rounds": rounds, "log": read(log)}


def lightning(log: str) -> dict[str, Any]:
    """Lightning's training until the log is complete, and what is in force at its end."""
    import lightning.pytorch as pl

    from hvdtune.lightning import HvdtuneStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(0, LAYERS)
            self.in_force: dict[str, float] = {}

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(batch[0]).square().mean()
            return loss

        def on_train_batch_end(self, *_arguments: Any) -> None:
            if ended(log, self.global_step):
                self.in_force = dict(tuning.current())
                self.trainer.should_stop = True

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.ones(400, 8))
    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=HvdtuneStrategy(),
        max_epochs=100_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    hvd.shutdown()
    return {"in_force": module.in_force, "steps": trainer.global_step}
