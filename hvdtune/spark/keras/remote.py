"""Trains a Keras model on one rank."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import hvdtune.keras as hvd
from hvdtune.keras.package import keras
from hvdtune.keras.variables import build_optimizer, optimizer_variables, value_of
from hvdtune.spark.common.plan import TrainingPlan
from hvdtune.spark.keras.batches import batches
from hvdtune.spark.keras.serialization import made, model_from_bytes


@dataclass
class KerasProgram:
    """The model to train, and how to train it."""

    model: bytes
    optimizer: Any  # as `described`
    losses: Any
    metrics: Any
    callbacks: list[Any]
    checkpoint_callback: Any
    custom_objects: dict[str, Any] | None


@dataclass
class KerasResult:
    """Rank 0's result: the metrics of each epoch, by name, and the final weights."""

    history: dict[str, list[float]]
    weights: list[np.ndarray[Any, Any]]


@dataclass
class KerasState:
    """A checkpoint: NumPy arrays only."""

    weights: list[np.ndarray[Any, Any]]
    optimizer: list[np.ndarray[Any, Any]]
    ranks: int


def train(plan: TrainingPlan, program: bytes, checkpoint: bytes | None) -> KerasResult | None:
    """Train on this rank. Returns rank 0's result, and None on the others.

    checkpoint: that of an earlier run with the same name; training continues from it.
    """
    hvd.init()
    try:
        return _train(plan, pickle.loads(program), checkpoint)
    finally:
        hvd.shutdown()


def _train(
    plan: TrainingPlan, program: KerasProgram, checkpoint: bytes | None
) -> KerasResult | None:
    if plan.random_seed is not None:
        keras.utils.set_random_seed(plan.random_seed + hvd.rank())
    custom = program.custom_objects
    model = model_from_bytes(program.model, custom)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.get(made(program.optimizer, custom)),
        compression=plan.gradient_compression or hvd.Compression.none,
        backward_passes_per_step=plan.backward_passes_per_step,
        average_aggregated_gradients=True,
    )
    model.compile(
        optimizer=optimizer,
        loss=made(program.losses, custom),
        loss_weights=plan.loss_weights if len(plan.label_columns) > 1 else None,
        metrics=made(program.metrics, custom) or None,
    )
    _restore(model, checkpoint)
    train_steps, val_steps = plan.steps(hvd.size())
    best = None
    with plan.data(hvd.rank(), hvd.size()) as data, _folder(plan) as folder:
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            *_own(program.callbacks, plan, folder),
        ]
        if hvd.rank() == 0:
            callbacks.append(_Save(plan, folder))
            if program.checkpoint_callback is not None and folder is not None:
                own = program.checkpoint_callback
                suffix = "weights.h5" if getattr(own, "save_weights_only", False) else "keras"
                best = own.filepath = os.path.join(folder, f"best.{suffix}")
                callbacks.insert(-1, own)
        history = model.fit(
            batches(model, plan, data.train_data()),
            steps_per_epoch=train_steps,
            epochs=plan.epochs,
            validation_data=batches(model, plan, data.val_data()) if val_steps else None,
            validation_steps=val_steps or None,
            callbacks=callbacks,
            verbose=2 if plan.verbose and hvd.rank() == 0 else 0,
        )
        if hvd.rank() != 0:
            return None
        if folder is not None:
            plan.store.sync(folder)  # uploads what callbacks have written at the end
        if best is not None and os.path.exists(best):
            model.load_weights(best)
    told = {name: [float(value) for value in values] for name, values in history.history.items()}
    return KerasResult(told, model.get_weights())


def _restore(model: Any, checkpoint: bytes | None) -> None:
    """Load a checkpoint; scale the learning rate for the number of ranks."""
    optimizer, ranks_before = model.optimizer, 1
    if checkpoint is not None:
        state: KerasState = pickle.loads(checkpoint)
        ranks_before = state.ranks
        model.set_weights(state.weights)
        build_optimizer(optimizer, model)
        for variable, saved in zip(optimizer_variables(optimizer), state.optimizer, strict=True):
            variable.assign(saved)
    # Schedules are not scaled: they determine the rate themselves.
    if hasattr(optimizer.learning_rate, "assign"):
        rate = float(value_of(optimizer.learning_rate))
        optimizer.learning_rate = rate * hvd.size() / ranks_before


def _own(callbacks: list[Any], plan: TrainingPlan, folder: str | None) -> list[Any]:
    """The user's callbacks. TensorBoard's run only on rank 0, and write into the run's logs."""
    boards = [one for one in callbacks if isinstance(one, keras.callbacks.TensorBoard)]
    if hvd.rank() != 0:
        return [one for one in callbacks if one not in boards]
    if folder is not None:
        for board in boards:
            board.log_dir = os.path.join(folder, plan.store.logs_subdir)
    return callbacks


@contextlib.contextmanager
def _folder(plan: TrainingPlan) -> Iterator[str | None]:
    if hvd.rank() == 0 and plan.store.saving_runs:
        with plan.store.get_local_output_dir() as folder:
            yield folder
    else:
        yield None


class _Save(keras.callbacks.Callback):
    """Writes the state after each epoch into the store."""

    def __init__(self, plan: TrainingPlan, folder: str | None) -> None:
        super().__init__()
        self._plan, self._folder = plan, folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write, then rename, so that readers see a whole file."""
        if self._folder is None:
            return
        optimizer = [value_of(one) for one in optimizer_variables(self.model.optimizer)]
        state = KerasState(self.model.get_weights(), optimizer, hvd.size())
        path = os.path.join(self._folder, self._plan.store.checkpoint_filename)
        with open(f"{path}.new", "wb") as file:
            pickle.dump(state, file)
        os.replace(f"{path}.new", path)
        self._plan.store.sync(self._folder)
