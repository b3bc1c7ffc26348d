"""Which Keras this process uses.

The variable `TF_USE_LEGACY_KERAS` decides whether `tf.keras` is tf-keras. The two packages share
no classes, so both faces (`hvdtune.keras` and `hvdtune.tensorflow.keras`) follow that variable.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
"""Whether it is Keras 2, in the package tf-keras."""


def load() -> Any:
    """The package. Raises ImportError, saying what to install, if it is missing or too old."""
    name = "tf_keras" if LEGACY else "keras"
    try:
        package = importlib.import_module(name)
    except ImportError as error:
        needed = (
            "the package tf-keras (because TF_USE_LEGACY_KERAS is set)" if LEGACY else "Keras 3"
        )
        raise ImportError(
            f"hvdtune.keras needs {needed}, which cannot be imported here ({error}). "
            f"Install it with: pip install {name.replace('_', '-')}"
        ) from error
    version = getattr(package, "__version__", "3")
    if not LEGACY and int(version.split(".")[0]) < 3:
        raise ImportError(
            f"hvdtune.keras needs Keras 3; keras here is {version}. Upgrade it, or use tf-keras "
            "with TF_USE_LEGACY_KERAS=1."
        )
    return package


keras: Any = load()
"""Keras 3's package, or tf-keras'."""


def backend_name() -> str:
    """`tensorflow`, `torch`, `jax`, or another that Keras may have."""
    return "tensorflow" if LEGACY else str(keras.backend.backend())
