"""The PyTorch estimator and its transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hvdtune.spark.common import util
from hvdtune.spark.common.estimator import HorovodEstimator, HorovodModel
from hvdtune.spark.common.params import ESTIMATOR, MODEL, Entry, function, items, replaced
from hvdtune.spark.common.plan import TrainingPlan
from hvdtune.spark.common.prediction import Predict
from hvdtune.spark.torch.datamodule import TorchDataModule, as_tensor
from hvdtune.spark.torch.objective import as_inputs, as_list, dtype_of, takes_reduction
from hvdtune.spark.torch.remote import TorchProgram, TorchResult, train
from hvdtune.spark.torch.serialization import dumps, loads


def _torch_model(value: Any) -> Any:
    if not isinstance(value, torch.nn.Module):
        raise ValueError("a torch.nn.Module")
    return value


def _torch_optimizer(value: Any) -> Any:
    if not isinstance(value, torch.optim.Optimizer):
        raise ValueError("a torch.optim.Optimizer, made with the model's parameters")
    return value


_MODEL = Entry("model", None, "the model: a torch.nn.Module", _torch_model)
_INPUT_SHAPES = Entry(
    "input_shapes", None, "a batch's shape for each feature column, such as [-1, 1, 28, 28]", items
)
_LOSS = Entry("loss", None, "a loss function or module, or one for each label", items)
_CONSTRUCTORS = Entry(
    "loss_constructors",
    None,
    "functions that make the losses, instead of loss; they may take model, optimizer and plan",
    items,
)


class TorchEstimator(HorovodEstimator):
    """Trains a `torch.nn.Module` on a DataFrame over the ranks; `fit(df)` returns a `TorchModel`.

    Feature columns are the model's arguments, in order, as floating-point numbers in the shapes of
    `input_shapes`; its outputs correspond to the label columns. The learning rate is multiplied by
    the number of ranks. `hvdtune.spark.common.params` describes all parameters.
    """

    entries = replaced(
        ESTIMATOR,
        _MODEL,
        Entry("optimizer", None, "the optimizer, with the model's parameters", _torch_optimizer),
        _LOSS,
        _CONSTRUCTORS,
        _INPUT_SHAPES,
        Entry(
            "train_minibatch_fn",
            None,
            "your own training step: f(model, optimizer, transform_outputs, loss_fn, inputs, "
            "labels, sample_weights) returns (outputs, loss)",
            function,
        ),
        Entry("data_module", None, "the class of the ranks' data (a DataModule)", function),
    )
    run_prefix = "pytorch"
    default_data_module = TorchDataModule

    def _check_params(self) -> None:
        super()._check_params()
        if self.value("optimizer") is None:
            raise ValueError("TorchEstimator needs optimizer: give it, or call setOptimizer.")
        check_loss(self)
        own = set(self.value("model").parameters())
        groups = self.value("optimizer").param_groups
        if not all(one in own for group in groups for one in group["params"]):
            raise ValueError(
                "the optimizer has parameters that are not the model's: make it with "
                "model.parameters() of the model given here."
            )

    def _input_shapes(self) -> list[Any] | None:
        return self.value("input_shapes")

    def _training(
        self, plan: TrainingPlan, checkpoint: bytes | None
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        program = TorchProgram(
            model=self.value("model"),
            optimizer=self.value("optimizer"),
            losses=losses_of(self, "loss"),
            loss_constructors=losses_of(self, "loss_constructors"),
            metrics=metric_groups(self.value("metrics"), len(plan.label_columns)),
            input_shapes=self.value("input_shapes"),
            train_minibatch_fn=self.value("train_minibatch_fn"),
        )
        return train, (dumps(program), checkpoint)

    def _model(self, result: TorchResult, plan: TrainingPlan) -> TorchModel:
        # A copy, so that the estimator's own model is not changed.
        model, optimizer = loads(dumps((self.value("model"), self.value("optimizer"))))
        state = loads(result.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return TorchModel(
            history=result.history,
            model=model,
            optimizer=optimizer,
            input_shapes=self.value("input_shapes"),
            feature_columns=plan.feature_columns,
            label_columns=plan.label_columns,
            run_id=plan.run_id,
            _metadata=with_output_sizes(plan, result.output_sizes),
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
        )

    def to_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """Put model and optimizer into one pickle, because they share parameters."""
        return pair_saved(values)

    def from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters, from the pickled values."""
        return pair_loaded(values)


class TorchModel(HorovodModel):
    """A trained PyTorch model; `transform(df)` adds `<label>__output` for each label."""

    entries = replaced(
        MODEL,
        _MODEL,
        Entry("optimizer", None, "the optimizer after training", _torch_optimizer),
        _LOSS,
        _CONSTRUCTORS,
        _INPUT_SHAPES,
    )

    def _loader(self) -> Callable[[], Predict]:
        data, shapes = dumps(self.value("model")), self.value("input_shapes")

        def load() -> Predict:
            return predictor(loads(data), shapes)

        return load

    def to_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """Put model and optimizer into one pickle, because they share parameters."""
        return pair_saved(values)

    def from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters, from the pickled values."""
        return pair_loaded(values)


def predictor(model: torch.nn.Module, shapes: Sequence[Any] | None) -> Predict:
    """A function that predicts with a model: arrays in, arrays out."""
    model.eval()
    dtype = dtype_of(model)

    def predict(features: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        tensors = [as_tensor(one) for one in features]
        with torch.no_grad():
            outputs = as_list(model(*as_inputs(tensors, shapes, dtype)))
        return [one.numpy() for one in outputs]

    return predict


def with_output_sizes(plan: TrainingPlan, sizes: Sequence[int]) -> util.Metadata:
    """The columns' metadata, with the numbers per row of each label's output."""
    metadata = {name: dict(told) for name, told in plan.metadata.items()}
    for label, size in zip(plan.label_columns, sizes, strict=False):
        metadata[label]["outputs"] = size
    return metadata


def losses_of(estimator: HorovodEstimator, name: str) -> list[Any] | None:
    """A list with one loss, or its constructor, for each label; None if there are none."""
    return util.to_list(estimator.value(name), len(estimator.value("label_cols")))


def metric_groups(metrics: Sequence[Any], labels: int) -> list[list[Any]]:
    """For each metric, a function for each label; a list in `metrics` already contains these."""
    return [util.to_list(metric, labels) or [] for metric in metrics]


def check_loss(estimator: HorovodEstimator) -> None:
    """Raise ValueError unless the estimator has valid losses, one for each label."""
    given, constructors = (estimator.value(name) for name in ("loss", "loss_constructors"))
    if (given is None) == (constructors is None):
        raise ValueError(
            "TorchEstimator needs either loss or loss_constructors, and not both: "
            + ("neither was given." if given is None else "both were.")
        )
    name = "loss" if given is not None else "loss_constructors"
    try:
        chosen = losses_of(estimator, name) or []
    except ValueError as error:
        raise ValueError(f"{name}: one is needed for each of label_cols: {error}") from None
    if not all(callable(one) for one in chosen):
        raise ValueError(f"{name} must be functions or modules, not {chosen!r}.")
    if estimator.value("sample_weight_col") is not None and given is not None:
        for loss in chosen:
            if not takes_reduction(loss):
                raise ValueError(
                    "sample_weight_col needs losses that can give a value for each row: "
                    f"{loss!r} has neither an attribute nor an argument `reduction`."
                )


def pair_saved(values: dict[str, Any]) -> dict[str, Any]:
    """The parameters, with model and optimizer in one pickle."""
    rest = {name: value for name, value in values.items() if name not in ("model", "optimizer")}
    return {**rest, "model": dumps((values.get("model"), values.get("optimizer")))}


def pair_loaded(values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `pair_saved`."""
    model, optimizer = loads(values["model"])
    return {**values, "model": model, "optimizer": optimizer}
