"""Keras' models, optimizers, losses and metrics, in forms that can be sent to other processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdtune.keras.package import keras

Objects = Mapping[str, Any] | None


def model_to_bytes(model: Any) -> bytes:
    """A built model as the bytes of a .keras file. Raises ValueError if it is not built."""
    if not getattr(model, "built", False):
        raise ValueError(
            "the Keras model is not built, so it has no weights yet: give it an Input, or call it "
            "once, before fit()."
        )
    with tempfile.TemporaryDirectory(prefix="hvdtune-keras-") as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def model_from_bytes(data: bytes, custom_objects: Objects = None) -> Any:
    """The model, not compiled. custom_objects: classes and functions by name."""
    with tempfile.TemporaryDirectory(prefix="hvdtune-keras-") as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(data)
        return keras.models.load_model(
            path, custom_objects=dict(custom_objects or {}), compile=False, safe_mode=False
        )


@dataclass(frozen=True)
class Described:
    """A Keras object, given by its configuration."""

    config: Any


def described(value: Any) -> Any:
    """Losses, metrics and optimizers as configurations, also in lists and dicts; others stay."""
    if isinstance(value, (list, tuple)):
        return [described(one) for one in value]
    if isinstance(value, dict):
        return {name: described(one) for name, one in value.items()}
    if hasattr(value, "get_config"):
        return Described(keras.saving.serialize_keras_object(value))
    return value


def made(value: Any, custom_objects: Objects = None) -> Any:
    """The inverse of `described`."""
    if isinstance(value, list):
        return [made(one, custom_objects) for one in value]
    if isinstance(value, dict):
        return {name: made(one, custom_objects) for name, one in value.items()}
    if isinstance(value, Described):
        return keras.saving.deserialize_keras_object(
            value.config, custom_objects=dict(custom_objects or {})
        )
    return value


def as_list(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """The result of `predict_on_batch`, as a list."""
    if isinstance(outputs, dict):
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
