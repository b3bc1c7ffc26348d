"""Predicts with a Keras model, in a task."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from hvdtune.spark.common.prediction import Predict
from hvdtune.spark.keras.batches import inputs_of
from hvdtune.spark.keras.serialization import as_list, model_from_bytes


def predictor(model_bytes: bytes, custom_objects: bytes) -> Predict:
    """A function that predicts with a model (given as a file's bytes): arrays in, arrays out."""
    model = model_from_bytes(model_bytes, pickle.loads(custom_objects))

    def predict(features: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        outputs = model.predict_on_batch(inputs_of(model, features))
        return [np.asarray(one) for one in as_list(outputs)]

    return predict
