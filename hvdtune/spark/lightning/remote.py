"""Trains a LightningModule on one rank."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import hvdtune.torch as hvd
from hvdtune.lightning import HvdtuneStrategy
from hvdtune.lightning.package import pl
from hvdtune.spark.common.plan import TrainingPlan
from hvdtune.spark.lightning.datamodule import EpochLoader
from hvdtune.spark.torch.serialization import dumps, loads

_RANKS = "hvdtune_ranks"  # a checkpoint's entry


@dataclass
class LightningProgram:
    """The module to train, and the Trainer's arguments."""

    module: Any
    callbacks: list[Any]
    logger: Any
    log_every_n_steps: int
    profiler: Any
    terminate_on_nan: bool
    trainer_args: dict[str, Any]


@dataclass
class LightningResult:
    """Rank 0's result: the logged values of each epoch, and the final weights."""

    history: list[dict[str, Any]]
    state: bytes


def train(plan: TrainingPlan, program: bytes, checkpoint: bytes | None) -> LightningResult | None:
    """Train on this rank. Returns rank 0's result, and None on the others.

    checkpoint: Lightning's file of an earlier run with the same name; training continues from it
    for `epochs` more.
    """
    hvd.init()
    try:
        with _folder(plan) as folder, _data(plan) as data, _resumed(checkpoint) as resumed:
            return _train(plan, loads(program), resumed, folder, data)
    finally:
        hvd.shutdown()


@contextlib.contextmanager
def _folder(plan: TrainingPlan) -> Iterator[str]:
    """A folder in which rank 0 writes what the store will keep; other ranks write nothing there."""
    if hvd.rank() == 0 and plan.store.saving_runs:
        with plan.store.get_local_output_dir() as folder:
            yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="hvdtune-run-") as folder:
            yield folder


@contextlib.contextmanager
def _data(plan: TrainingPlan) -> Iterator[Any]:
    """This rank's data; the Trainer sets up and tears down a `LightningDataModule`."""
    data: Any = plan.data(hvd.rank(), hvd.size())
    if isinstance(data, pl.LightningDataModule):
        yield data
    else:
        with data:
            yield data


class _Resumed(NamedTuple):
    """A checkpoint as the file that Lightning needs, and how many epochs it has completed."""

    path: str | None
    epochs: int


@contextlib.contextmanager
def _resumed(checkpoint: bytes | None) -> Iterator[_Resumed]:
    """The checkpoint in a file of this rank's own, which the store does not keep."""
    if checkpoint is None:
        yield _Resumed(None, 0)
        return
    with tempfile.TemporaryDirectory(prefix="hvdtune-run-") as folder:
        path = os.path.join(folder, "resumed.ckpt")
        with open(path, "wb") as file:
            file.write(checkpoint)
        yield _Resumed(path, int(loads(checkpoint)["epoch"]) + 1)


def _loaders(data: Any, train_steps: int, val_steps: int) -> dict[str, Any]:
    """The data arguments of `Trainer.fit`."""
    if isinstance(data, pl.LightningDataModule):
        return {"datamodule": data}
    loaders = {"train_dataloaders": EpochLoader(data.train_data(), train_steps)}
    if val_steps:
        loaders["val_dataloaders"] = EpochLoader(data.val_data(), val_steps)
    return loaders


def _train(
    plan: TrainingPlan, program: LightningProgram, resumed: _Resumed, folder: str, data: Any
) -> LightningResult | None:
    if plan.random_seed is not None:
        torch.manual_seed(plan.random_seed + hvd.rank())
    train_steps, val_steps = plan.steps(hvd.size())
    record = _Record(plan, folder)
    callbacks = [_Rates(), *program.callbacks, record]
    place = os.path.join(folder, plan.store.checkpoint_filename)
    if plan.store.saving_runs:
        own = [one for one in callbacks if isinstance(one, pl.callbacks.ModelCheckpoint)]
        for one in own:
            one.dirpath = place
        if not own:
            callbacks.insert(0, pl.callbacks.ModelCheckpoint(dirpath=place))
    if program.terminate_on_nan:
        callbacks.append(_FiniteLoss())
    arguments: dict[str, Any] = {
        "strategy": HvdtuneStrategy(
            compression=plan.gradient_compression or hvd.Compression.none, scale_lr=True
        ),
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": resumed.epochs + plan.epochs,
        "limit_train_batches": train_steps,
        "limit_val_batches": val_steps,
        "num_sanity_val_steps": 0,
        "accumulate_grad_batches": plan.backward_passes_per_step,
        "callbacks": callbacks,
        "logger": program.logger or pl.loggers.CSVLogger(folder, plan.store.logs_subdir, ""),
        "log_every_n_steps": program.log_every_n_steps,
        "profiler": program.profiler,
        "enable_checkpointing": plan.store.saving_runs,
        "enable_progress_bar": plan.verbose > 1,
        "enable_model_summary": plan.verbose > 1,
        "default_root_dir": folder,
        "use_distributed_sampler": False,
        **program.trainer_args,
    }
    trainer = pl.Trainer(**arguments)
    module = program.module
    loaders = _loaders(data, train_steps, val_steps)
    trainer.fit(module, **loaders, ckpt_path=resumed.path, weights_only=False)
    if hvd.rank() != 0:
        return None
    if plan.store.saving_runs:
        plan.store.sync(folder)
    return LightningResult(record.history, dumps(module.state_dict()))


class _Rates(pl.Callback):
    """Fits a checkpoint's learning rates to this run's number of ranks."""

    def __init__(self) -> None:
        self._ranks_before: int | None = None

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """Note for how many ranks the rates are."""
        checkpoint[_RANKS] = trainer.world_size

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """Note for how many ranks they were."""
        self._ranks_before = checkpoint.get(_RANKS)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Scale them; the checkpoint's have replaced those that the strategy has scaled."""
        if self._ranks_before and isinstance(trainer.strategy, HvdtuneStrategy):
            trainer.strategy.scale_learning_rates(trainer.world_size / self._ranks_before)


class _Record(pl.Callback):
    """Keeps the logged values of each epoch, and uploads the run's files."""

    def __init__(self, plan: TrainingPlan, folder: str) -> None:
        self._plan, self._folder = plan, folder
        self.history: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Note the epoch's values; validation has already run."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.history.append({"epoch": len(self.history), **values})
        if trainer.global_rank != 0:
            return
        if self._plan.verbose:
            shown = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
            print(
                f"{self._plan.run_id}: epoch {len(self.history)}/{self._plan.epochs}: {shown}",
                flush=True,
            )
        if self._plan.store.saving_runs:
            self._plan.store.sync(self._folder)


class _FiniteLoss(pl.Callback):
    """Ends training if a loss is not a number."""

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the loss of the step."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        if loss is not None and not math.isfinite(float(loss)):
            raise ValueError(
                f"the loss of step {trainer.global_step} on rank {trainer.global_rank} is "
                f"{float(loss)} (terminate_on_nan)."
            )
