"""The Keras estimator and its transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cloudpickle

from hvdtune.keras.package import backend_name, keras
from hvdtune.spark.common.estimator import HorovodEstimator, HorovodModel
from hvdtune.spark.common.params import ESTIMATOR, MODEL, Entry, function, replaced
from hvdtune.spark.common.plan import TrainingPlan
from hvdtune.spark.common.prediction import Predict, call_with_environment
from hvdtune.spark.keras.datamodule import ParquetDataModule
from hvdtune.spark.keras.remote import KerasProgram, KerasResult, train
from hvdtune.spark.keras.serialization import described, made, model_from_bytes, model_to_bytes


def _keras_model(value: Any) -> Any:
    if not isinstance(value, keras.Model):
        raise ValueError(f"a model of {keras.__name__}")
    return value


def _objects(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a dict from name to class or function")
    return dict(value)


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a dict of environment variables")
    return {str(name): str(one) for name, one in value.items()}


_MODEL = Entry("model", None, "the model, built", _keras_model)
_CUSTOM = Entry("custom_objects", None, "classes and functions that the model needs", _objects)


class KerasEstimator(HorovodEstimator):
    """Trains a Keras model on a DataFrame over the ranks; `fit(df)` returns a `KerasModel`.

    Feature columns are the model's inputs, in order, label columns its outputs. A constant learning
    rate is multiplied by the number of ranks. `optimizer` and `loss` may be left out of a compiled
    model. `hvdtune.spark.common.params` describes all parameters.
    """

    entries = replaced(
        ESTIMATOR,
        _MODEL,
        _CUSTOM,
        Entry("data_module", None, "the class of the ranks' data (a DataModule)", function),
        Entry(
            "checkpoint_callback",
            None,
            "a ModelCheckpoint for rank 0, whose last file is the model that fit() returns",
        ),
        Entry(
            "backend_env",
            {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
            "environment variables of the ranks",
            _variables,
        ),
    )
    run_prefix = "keras"
    default_data_module = ParquetDataModule

    def _check_params(self) -> None:
        super()._check_params()
        for name in ("optimizer", "loss"):
            if self._given(name) is None:
                raise ValueError(
                    f"KerasEstimator needs {name}: give it, or a model that is compiled with one."
                )

    def _given(self, name: str) -> Any:
        value = self.value(name)
        if value is not None:
            return value
        return getattr(self.value("model"), name, None)

    def _environment(self) -> dict[str, str]:
        return {**self.value("backend_env"), **_keras_environment()}

    def _training(
        self, plan: TrainingPlan, checkpoint: bytes | None
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        program = KerasProgram(
            model=model_to_bytes(self.value("model")),
            optimizer=described(self._given("optimizer")),
            losses=described(self._given("loss")),
            metrics=described(self.value("metrics")),
            callbacks=self.value("callbacks"),
            checkpoint_callback=self.value("checkpoint_callback"),
            custom_objects=self.value("custom_objects"),
        )
        return train, (cloudpickle.dumps(program), checkpoint)

    def _model(self, result: KerasResult, plan: TrainingPlan) -> KerasModel:
        custom = self.value("custom_objects")
        model = model_from_bytes(model_to_bytes(self.value("model")), custom)
        model.set_weights(result.weights)
        metadata = {name: dict(told) for name, told in plan.metadata.items()}
        for label, output in zip(plan.label_columns, model.outputs, strict=True):
            shape = tuple(output.shape)[1:]
            if None not in shape:
                metadata[label]["outputs"] = math.prod(shape)
        return KerasModel(
            history=result.history,
            model=model,
            custom_objects=custom,
            feature_columns=plan.feature_columns,
            label_columns=plan.label_columns,
            run_id=plan.run_id,
            _metadata=metadata,
            _floatx=keras.backend.floatx(),
        )

    def to_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """Convert Keras' objects to forms that can be pickled."""
        saved = _saved(values)
        for name in ("optimizer", "loss", "metrics"):
            if name in saved:
                saved[name] = described(saved[name])
        return saved

    def from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters, from the pickled values."""
        loaded = _loaded(values)
        for name in ("optimizer", "loss", "metrics"):
            if name in loaded:
                loaded[name] = made(loaded[name], loaded.get("custom_objects"))
        return loaded


class KerasModel(HorovodModel):
    """A trained Keras model; `transform(df)` adds `<label>__output` for each label."""

    entries = replaced(
        MODEL, _MODEL, _CUSTOM, Entry("_floatx", None, "Keras' type of floating-point numbers")
    )

    def _loader(self) -> Callable[[], Predict]:
        data = model_to_bytes(self.value("model"))
        custom = cloudpickle.dumps(self.value("custom_objects"))
        return partial(
            call_with_environment,
            _keras_environment(),
            "hvdtune.spark.keras.prediction",
            "predictor",
            (data, custom),
        )

    def to_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """Convert Keras' objects to forms that can be pickled."""
        return _saved(values)

    def from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters, from the pickled values."""
        return _loaded(values)


def _keras_environment() -> dict[str, str]:
    """The variables that make another process use the same Keras."""
    if keras.__name__ == "tf_keras":
        return {"TF_USE_LEGACY_KERAS": "1"}
    return {"KERAS_BACKEND": backend_name()}


def _saved(values: dict[str, Any]) -> dict[str, Any]:
    model = values.get("model")
    return {**values, "model": None if model is None else model_to_bytes(model)}


def _loaded(values: dict[str, Any]) -> dict[str, Any]:
    data = values.get("model")
    model = None if data is None else model_from_bytes(data, values.get("custom_objects"))
    return {**values, "model": model}
