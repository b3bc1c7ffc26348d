"""PyTorch on Spark: an estimator, and the transformer that it fits.

from hvdtune.spark.torch import TorchEstimator
model = TorchEstimator(store=store, model=net, optimizer=…, …).fit(df)
model.transform(df)
"""

from __future__ import annotations

import hvdtune.torch  # noqa: F401  (says what is missing if PyTorch is)
from hvdtune.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
