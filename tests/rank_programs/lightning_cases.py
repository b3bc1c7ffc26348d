"""What the Lightning rank programs share: data, a module, and trainers with and without ranks."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hvdtune.torch as hvd
from hvdtune.lightning import HvdtuneStrategy

BATCH = 12  # rows of all ranks together: divides evenly among 1, 2, 3 and 4
STEPS = 5

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(BATCH * STEPS, 4, generator=generator)
    return TensorDataset(inputs, (inputs**2).sum(1, keepdim=True))


def loader(shared: bool) -> DataLoader[Any]:
    """The data in batches of ``BATCH`` rows; if ``shared``, of this rank's part of each batch."""
    rank, size = (hvd.rank(), hvd.size()) if shared else (0, 1)
    part = BATCH // size
    starts = range(rank * part, BATCH * STEPS, BATCH)
    return DataLoader(dataset(), batch_sampler=[list(range(i, i + part)) for i in starts])


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))


class Module(pl.LightningModule):
    """Regression with momentum and a learning rate that changes every epoch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = network()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = mse_loss(self.net(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def new_trainer(distributed: bool, **options: Any) -> pl.Trainer:
    """A quiet Trainer: over the ranks, or of this process alone."""
    if distributed:
        options.setdefault("strategy", HvdtuneStrategy())
    else:
        options.setdefault("plugins", [LightningEnvironment()])
    options = {
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        **options,
    }
    return pl.Trainer(accelerator="cpu", devices=1, **options)


def fit(module: pl.LightningModule, distributed: bool, **options: Any) -> pl.Trainer:
    """Train on all data: every rank on its share of each batch, or this process on all of it."""
    trainer = new_trainer(distributed, **options)
    trainer.fit(module, loader(distributed))
    return trainer


def assert_equal(
    got: pl.LightningModule, expected: pl.LightningModule, what: object, tolerance: float = 2e-6
) -> None:
    """Fail unless all weights and statistics agree to ``tolerance``, relative to the largest."""
    state = got.state_dict()
    assert state.keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        scale = max(1.0, float(value.abs().max()))
        difference = float((state[name] - value).abs().max())
        assert difference <= tolerance * scale, (what, name, difference)


def assert_trains_alike(kind: type[Module], tolerance: float = 2e-6, **options: Any) -> None:
    """Ranks that start with different weights end with those that one process gets.

    That process starts with rank 0's weights and sees the joined batches.
    """
    before, alone = kind(0), kind(0)
    fit(alone, False, **options)
    assert any(
        not torch.equal(a, b) for a, b in zip(before.parameters(), alone.parameters(), strict=True)
    ), "nothing was trained"
    module = kind(hvd.rank())
    fit(module, True, **options)
    assert_equal(module, alone, (kind.__name__, options), tolerance)
    weights = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    everywhere = hvd.allgather(weights.unsqueeze(0))
    assert bool((everywhere == everywhere[0]).all()), "the ranks ended with different weights"
