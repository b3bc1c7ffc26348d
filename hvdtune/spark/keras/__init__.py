"""Keras on Spark: an estimator for Keras 3 on any backend, and tf-keras, and its transformer.

Knows `hvdtune.keras` and `hvdtune.spark.common`. docs/spark-estimators.md has an example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hvdtune.keras.package  # noqa: F401  (says what is missing if Keras is)

if TYPE_CHECKING:
    from hvdtune.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]


def __getattr__(name: str) -> Any:
    # Ranks need only `remote`, without Spark's machine learning.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hvdtune.spark.keras import estimator

    return getattr(estimator, name)
