"""The TensorFlow that the process has imported."""

from __future__ import annotations

import hvdtune._native as _native

_LIBRARY = "libtensorflow_framework.so.2"
_XLA_LIBRARY = "libtensorflow_cc.so.2"


def register_operations() -> str:
    """Add Horovod's operations to TensorFlow, once; if that is not possible, return why.

    They need functions of TensorFlow's C interface, which another version may lack; then none is
    registered.
    """
    try:
        _native.register_tensorflow(_LIBRARY)
    except ValueError as error:
        return str(error)
    return ""


def register_xla_calls() -> str:
    """Add our custom calls to TensorFlow's XLA, once; if that is not possible, return why.

    They need C++ symbols, which another version may lack; then none is registered.
    """
    try:
        _native.register_tensorflow_xla(_XLA_LIBRARY)
    except ValueError as error:
        return str(error)
    return ""
