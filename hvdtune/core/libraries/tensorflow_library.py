"""The TensorFlow that the process has imported."""

from __future__ import annotations

import hvdtune._native as _native

_LIBRARY = "libtensorflow_framework.so.2"
_XLA_LIBRARY = "libtensorflow_cc.so.2"


def register_operations() -> str:
    """Make Horovod's operations TensorFlow's, once; else why that is not possible.

    They need functions of TensorFlow's C interface, which another version may lack: then none is
    registered.
    """
    try:
        _native.register_tensorflow(_LIBRARY)
    except ValueError as error:
        return str(error)
    return ""


def register_xla_calls() -> str:
    """Make XLA's custom calls of ours known to TensorFlow's XLA, once; else why not.

    They need symbols of C++, which another version may lack: then none is registered.
    """
    try:
        _native.register_tensorflow_xla(_XLA_LIBRARY)
    except ValueError as error:
        return str(error)
    return ""
