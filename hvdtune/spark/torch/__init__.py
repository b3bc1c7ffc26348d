"""PyTorch on Spark: an estimator, and the transformer that it fits.

Knows `hvdtune.torch` and `hvdtune.spark.common`. docs/spark-estimators.md has an example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hvdtune.torch  # noqa: F401  (says what is missing if PyTorch is)

if TYPE_CHECKING:
    from hvdtune.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    # Ranks need only `remote`, without Spark's machine learning.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hvdtune.spark.torch import estimator

    return getattr(estimator, name)
