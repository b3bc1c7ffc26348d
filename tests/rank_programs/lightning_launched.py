"""Rank programs: Lightning as a user starts it, from the package ``pytorch_lightning``."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import hvdtune.lightning


class Line(pl.LightningModule):
    """Fits a line; ``failing_rank`` raises in its second step."""

    def __init__(self, failing_rank: int) -> None:
        super().__init__()
        self.failing_rank = failing_rank
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if index == 1 and self.global_rank == self.failing_rank:
            raise ArithmeticError("this rank has an accident")
        return (self.layer(batch[0]) - 2 * batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit_by_name() -> dict[str, Any]:
    """Train with the name that scripts for Lightning's own Horovod strategy use."""
    return fit("horovod", -1)


def fail() -> None:
    """Begin to train; rank 1 does not get far."""
    # With a name, Lightning starts MPI (where mpi4py is installed), and a killed rank leaves
    # MPI's files behind.
    fit(hvdtune.lightning.HvdtuneStrategy(), 1)


def fit(strategy: Any, failing_rank: int) -> dict[str, Any]:
    """Train; what every rank has then."""
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    assert isinstance(trainer.strategy, hvdtune.lightning.HvdtuneStrategy)
    torch.manual_seed(trainer.global_rank)
    module = Line(failing_rank)
    inputs = torch.linspace(-1, 1, 24).unsqueeze(1)
    trainer.fit(module, DataLoader(TensorDataset(inputs), batch_size=4))
    return {
        "rank": trainer.global_rank,
        "size": trainer.world_size,
        "steps": trainer.global_step,
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "weights": [p.item() for p in module.parameters()],
    }
