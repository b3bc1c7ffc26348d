"""The Lightning estimator and its transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hvdtune.lightning.package import CHOSEN, OLDEST, pl
from hvdtune.spark.common.estimator import HorovodEstimator
from hvdtune.spark.common.params import ESTIMATOR, Entry, function, replaced, truth, whole
from hvdtune.spark.common.plan import TrainingPlan
from hvdtune.spark.common.store import Store
from hvdtune.spark.lightning.datamodule import TorchDataModule
from hvdtune.spark.lightning.legacy import TrainedModule
from hvdtune.spark.lightning.remote import LightningProgram, LightningResult, train
from hvdtune.spark.torch import estimator as of_torch
from hvdtune.spark.torch.objective import constructed
from hvdtune.spark.torch.serialization import dumps, loads

#: The oldest PyTorch Lightning that is supported; the name is Horovod's.
MIN_PL_VERSION = ".".join(map(str, OLDEST))

_TORCH = {entry.name: entry for entry in of_torch.TorchEstimator.entries}


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a dict of arguments for Lightning's Trainer")
    return value


class TorchEstimator(HorovodEstimator):
    """Trains a LightningModule on a DataFrame over the ranks; `fit(df)` returns a `TorchModel`.

    The module's steps get batches as dicts from column to tensor. A plain `torch.nn.Module` can be
    trained too, with `loss` and `optimizer`, as in `hvdtune.spark.torch`. Learning rates are
    multiplied by the number of ranks. `hvdtune.spark.common.params` describes all parameters.
    """

    entries = replaced(
        ESTIMATOR,
        *(_TORCH[name] for name in ("model", "optimizer", "loss", "loss_constructors")),
        *(_TORCH[name] for name in ("input_shapes", "data_module")),
        Entry("train_minibatch_fn", None, "not for Lightning: use training_step", function),
        Entry(
            "num_gpus", None, "GPUs of each rank: 0 or unset, because Lightning's ranks use CPUs"
        ),
        Entry("logger", None, "Lightning's logger; by default a CSV file in the run's logs"),
        Entry("log_every_n_steps", 50, "steps between two lines of the log", whole(1)),
        Entry("loader_num_epochs", None, "accepted; loaders have no end", whole(1)),
        Entry("terminate_on_nan", False, "end training if a loss is not a number", truth),
        Entry("profiler", None, "Lightning's profiler"),
        Entry("trainer_args", None, "further arguments of Lightning's Trainer", _arguments),
        Entry("debug_data_loader", False, "accepted; there is nothing to debug", truth),
        Entry("train_async_data_loader_queue_size", None, "accepted; row groups are read ahead"),
        Entry("val_async_data_loader_queue_size", None, "accepted; row groups are read ahead"),
    )
    run_prefix = "lightning"
    default_data_module = TorchDataModule

    def _check_params(self) -> None:
        super()._check_params()
        if self.value("num_gpus"):
            raise ValueError(
                f"num_gpus={self.value('num_gpus')!r} is not accepted: Lightning's ranks train on "
                "CPUs in this version; hvdtune.spark.torch trains on GPUs."
            )
        if self.value("train_minibatch_fn") is not None:
            raise ValueError(
                "train_minibatch_fn is not for Lightning: write the module's training_step."
            )
        if isinstance(self.value("model"), pl.LightningModule):
            return
        if self.value("optimizer") is None:
            raise ValueError(
                "TorchEstimator needs optimizer, because the model is not a LightningModule."
            )
        of_torch.check_loss(self)

    def _environment(self) -> dict[str, str]:
        return {CHOSEN: pl.__name__}

    def _input_shapes(self) -> list[Any] | None:
        return self.value("input_shapes")

    def _last_checkpoint(self, store: Store, run_id: str) -> bytes | None:
        """The newest of Lightning's files, whatever their names are."""
        newest, furthest = None, (-1, -1)
        for path in store.get_checkpoints(run_id) if store.saving_runs() else []:
            data = store.read(path)
            try:
                state = loads(data)
                progress = int(state["epoch"]), int(state["global_step"])
            except Exception:  # it was being written when the run ended
                continue
            if progress > furthest:
                newest, furthest = data, progress
        return newest

    def _training(
        self, plan: TrainingPlan, checkpoint: bytes | None
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        program = LightningProgram(
            module=self._module(plan),
            callbacks=self.value("callbacks"),
            logger=self.value("logger"),
            log_every_n_steps=self.value("log_every_n_steps"),
            profiler=self.value("profiler"),
            terminate_on_nan=self.value("terminate_on_nan"),
            trainer_args=self.value("trainer_args") or {},
        )
        return train, (dumps(program), checkpoint)

    def _module(self, plan: TrainingPlan) -> Any:
        model = self.value("model")
        if isinstance(model, pl.LightningModule):
            return model
        losses = of_torch.losses_of(self, "loss")
        if losses is None:
            known = {"model": model, "optimizer": self.value("optimizer"), "plan": plan}
            losses = constructed(of_torch.losses_of(self, "loss_constructors") or [], known)
        return TrainedModule(
            model,
            self.value("optimizer"),
            losses,
            plan.loss_weights,
            plan.feature_columns,
            plan.label_columns,
            plan.sample_weight_col,
            self.value("input_shapes"),
            plan.label_shapes,
        )

    def _model(self, result: LightningResult, plan: TrainingPlan) -> TorchModel:
        model: torch.nn.Module = loads(dumps(self.value("model")))
        state = loads(result.state)
        if not isinstance(model, pl.LightningModule):
            state = {name.removeprefix("model."): value for name, value in state.items()}
        model.load_state_dict(state)
        return TorchModel(
            history=result.history,
            model=model,
            input_shapes=self.value("input_shapes"),
            feature_columns=plan.feature_columns,
            label_columns=plan.label_columns,
            run_id=plan.run_id,
            _metadata=plan.metadata,
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
        )

    def to_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """Put model and optimizer into one pickle, because they share parameters."""
        return of_torch.pair_saved(values)

    def from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters, from the pickled values."""
        return of_torch.pair_loaded(values)


class TorchModel(of_torch.TorchModel):
    """A trained module, whose `forward` makes the predictions."""
