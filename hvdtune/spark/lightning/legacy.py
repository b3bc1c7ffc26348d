"""A plain `torch.nn.Module` with its loss and optimizer, as a LightningModule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvdtune.lightning.package import pl
from hvdtune.spark.torch.objective import Objective, as_inputs, dtype_of


class TrainedModule(pl.LightningModule):
    """Trains a module as `hvdtune.spark.torch.TorchEstimator` would; see there."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        losses: Sequence[Callable[..., Any]],
        loss_weights: Sequence[float],
        feature_columns: Sequence[str],
        label_columns: Sequence[str],
        sample_weight_col: str | None,
        input_shapes: Sequence[Any] | None,
        label_shapes: Sequence[Any] | None,
    ) -> None:
        super().__init__()
        self.model = model
        self._optimizer = optimizer
        self._objective = Objective(losses, loss_weights, label_shapes)
        self._features, self._labels = feature_columns, label_columns
        self._weight, self._input_shapes = sample_weight_col, input_shapes

    def forward(self, *inputs: Any) -> Any:
        """The model's output."""
        return self.model(*inputs)

    def _loss(self, batch: dict[str, Any]) -> Any:
        inputs = [batch[name] for name in self._features]
        outputs = self.model(*as_inputs(inputs, self._input_shapes, dtype_of(self.model)))
        objective = self._objective
        found, labels = objective.transform_outputs(outputs, [batch[name] for name in self._labels])
        return objective(found, labels, None if self._weight is None else batch[self._weight])

    def training_step(self, batch: dict[str, Any], batch_index: int) -> Any:
        """The loss of a batch."""
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_index: int) -> None:
        """Log the loss of a batch."""
        self.log("val_loss", self._loss(batch), batch_size=1, sync_dist=True)

    def configure_optimizers(self) -> Any:
        """The given optimizer."""
        return self._optimizer
