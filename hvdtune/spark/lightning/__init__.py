"""PyTorch Lightning on Spark: an estimator for LightningModules, and the transformer it fits.

from hvdtune.spark.lightning import TorchEstimator
model = TorchEstimator(store=store, model=module, feature_cols=…, label_cols=…).fit(df)
"""

from __future__ import annotations

import hvdtune.lightning  # noqa: F401  (says what is missing if Lightning is)
from hvdtune.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
