"""Callbacks for `fit`, with Horovod's names: equal weights, averaged metrics, learning rates.

Give all ranks the same callbacks in the same order. If a training step is compiled (TensorFlow,
JAX), the last of these callbacks also tells a recording where steps end.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtune.core import world
from hvdtune.core.objects import allgather_object
from hvdtune.core.observation import log, marks
from hvdtune.keras.package import backend_name, keras
from hvdtune.keras.variables import (
    broadcast_variables,
    build_optimizer,
    is_model_built,
    optimizer_variables,
    weights_of,
)

Logs = dict[str, Any] | None


class _Steps:
    """Which callback marks the steps of `fit`: the last of ours in its list."""

    marker: Any = None


_steps = _Steps()


class _Callback(keras.callbacks.Callback):
    """Marks the ends of steps, and turns off XLA for collectives that it cannot compile."""

    def on_train_begin(self, logs: Logs = None) -> None:
        """Make sure that the training step can be compiled."""
        super().on_train_begin(logs)
        _steps.marker = weakref.ref(self)
        model = self.model
        if backend_name() != "tensorflow" or not getattr(model, "jit_compile", False):
            return
        from hvdtune.tensorflow.calls import compiled as compiled_calls

        if not (reason := compiled_calls.missing()):
            return
        log.write("info", f"jit_compile=False for this model: {reason}")
        model.jit_compile = False
        model.make_train_function(force=True)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Mark the end of a step, if no optimizer does."""
        super().on_train_batch_end(batch, logs)
        if _steps.marker is not None and _steps.marker() is self:
            marks.step_ended(_steps)

    def _implements_train_batch_hooks(self) -> bool:
        return True  # tf-keras asks; its ModelCheckpoint says no


class BroadcastGlobalVariablesCallback(_Callback):
    """Makes the weights and the optimizer's variables of all ranks equal to those of `root_rank`.

    Does so before the first step if the model is already built on all ranks (`fit` builds it if it
    can), else after that step. `local_variables`: one variable or several that keep their values.
    Raises ValueError for local variables that are not variables.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local: list[Any] = []
        if local_variables is not None:
            given = (
                list(local_variables)
                if isinstance(local_variables, list | tuple | set)
                else [local_variables]
            )
            for variable in given:
                self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Do not broadcast this variable."""
        if not (hasattr(var, "assign") and hasattr(var, "shape")):
            raise ValueError(
                f"All local variables must be of tf.Variable type, or Keras variables, not {var!r}."
            )
        self._local.append(var)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast, if that is possible already."""
        super().on_train_begin(logs)
        if self.broadcast_done:
            return
        ready = allgather_object(is_model_built(self.model), name="broadcast_callback")
        if all(ready):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcast, if that was not possible before."""
        super().on_train_batch_end(batch, logs)
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        model = self.model
        local = {id(v) for v in self._local} | {id(getattr(v, "_value", v)) for v in self._local}
        variables = weights_of(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            build_optimizer(optimizer, model)
            variables += optimizer_variables(optimizer)
        broadcast_variables(
            [
                v
                for v in variables
                if id(v) not in local and id(getattr(v, "_value", v)) not in local
            ],
            self.root_rank,
        )
        self.broadcast_done = True


class MetricAverageCallback(_Callback):
    """At the end of an epoch, replaces every metric in `logs` with its average over the ranks.

    Ranks that lack a metric do not count. Must come before callbacks that read metrics.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Average."""
        own = {name: np.asarray(value, np.float64) for name, value in sorted((logs or {}).items())}
        every = allgather_object(own, name="metric_average")
        for name in own:
            values = [metrics[name] for metrics in every if name in metrics]
            mean = np.mean(values, axis=0)
            assert logs is not None
            logs[name] = float(mean) if mean.ndim == 0 else mean


class LearningRateScheduleCallback(_Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in some epochs.

    These are the epochs from `start_epoch` up to `end_epoch`, exclusive. multiplier: a function of
    the epoch; or a number m, which stands for m ** (epoch - start_epoch). staircase: set the rate
    once, at the beginning of an epoch; otherwise at every batch, with a fractional epoch, for which
    `steps_per_epoch` must be known. momentum_correction: in a batch that changes the rate, scale
    the momentum like the rate. This does not work with Keras 3 on TensorFlow and JAX, nor with the
    newer optimizers of tf-keras: the momentum is compiled into their steps.
    Raises ValueError if `initial_lr` is None.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._momentum: Any = None  # to restore at the end of the batch
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.staircase = True
            base = float(multiplier)
            self.multiplier = lambda epoch: math.pow(base, epoch - self.start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Find out how many steps an epoch has, if that matters."""
        super().on_train_begin(logs)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_of_fit()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Set the rate, if this callback applies to the epoch and the batch."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase:
            if batch == 0:
                self._adjust(self.current_epoch)
        else:
            assert self.steps_per_epoch
            self._adjust(self.current_epoch + float(batch) / self.steps_per_epoch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Restore the momentum."""
        super().on_train_batch_end(batch, logs)
        if self._momentum is not None:
            self._set_momentum(self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Put the rate that was used into `logs`."""
        if logs is not None:
            logs["lr"] = logs["learning_rate"] = _rate(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = _rate(optimizer), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if not self.momentum_correction or not getattr(optimizer, "momentum", None) or not old:
            return
        if old == new:
            return
        if not _can_change_momentum(optimizer):
            warnings.warn(
                "momentum_correction does nothing: this optimizer's momentum is part of the "
                "compiled step.",
                stacklevel=2,
            )
            self.momentum_correction = False
            return
        self._momentum = float(np.asarray(optimizer.momentum))
        self._set_momentum(self._momentum * new / old)

    def _set_momentum(self, value: float) -> None:
        self.model.optimizer.momentum = value

    def _steps_of_fit(self) -> int:
        params = self.params or {}
        if params.get("steps"):
            return int(params["steps"])
        if params.get("samples") and params.get("batch_size"):
            return int(params["samples"]) // int(params["batch_size"])
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the "
            f"steps_per_epoch parameter to the {type(self).__name__}()."
        )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr` in the first epochs.

    initial_lr: the rate of the whole job. verbose: whether rank 0 prints when it is reached.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            epoch += 1.0 / self.steps_per_epoch
            ranks = world.size()
            return 1.0 / ranks * (epoch * (ranks - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,  # type: ignore[arg-type]
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Print that the full rate is reached."""
        super().on_epoch_end(epoch, logs)
        if epoch == (self.end_epoch or 0) - 1 and self.verbose > 0 and world.rank() == 0:
            rate = _rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(_Callback, keras.callbacks.ModelCheckpoint):
    """A `ModelCheckpoint` that keeps the best model; set `filepath` before training begins."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            filepath="best.weights.h5" if save_weights_only else "best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check that `filepath` is set."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set its `filepath` before training begins.")
        super().on_train_begin(logs)


def _rate(optimizer: Any) -> float:
    rate = optimizer.learning_rate
    return float(keras.ops.convert_to_numpy(rate) if hasattr(keras, "ops") else np.asarray(rate))


def _can_change_momentum(optimizer: Any) -> bool:
    """Whether it is a variable (tf-keras' old optimizers) or steps are not compiled (PyTorch)."""
    return hasattr(optimizer, "_hyper") or backend_name() == "torch"
