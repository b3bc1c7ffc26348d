"""Keras on Spark: an estimator for Keras 3 on any backend, and tf-keras, and its transformer.

from hvdtune.spark.keras import KerasEstimator
model = KerasEstimator(store=store, model=net, optimizer="adam", loss="mse", …).fit(df)
model.transform(df)
"""

from __future__ import annotations

import hvdtune.keras.package  # noqa: F401  (says what is missing if Keras is)
from hvdtune.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
