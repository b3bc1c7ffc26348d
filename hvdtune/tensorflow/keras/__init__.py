"""Horovod's API for `tf.keras`: `import hvdtune.tensorflow.keras as hvd`.

The same as `hvdtune.keras`: both use tf-keras if TF_USE_LEGACY_KERAS is set, else Keras 3, as
`tf.keras` does. Knows `hvdtune.keras` alone.
"""

from __future__ import annotations

import sys

from hvdtune.keras import *  # noqa: F403
from hvdtune.keras import __all__, callbacks, elastic  # noqa: F401

for _name, _module in {"callbacks": callbacks, "elastic": elastic}.items():
    sys.modules[f"{__name__}.{_name}"] = _module
