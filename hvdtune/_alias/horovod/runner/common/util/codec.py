"""Python objects as text."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from hvdtune.launch.function import pickling


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """An object, pickled (functions of the script included), as text in base64."""
    encoded = base64.b64encode(pickling.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """The object that `dumps_base64` was given. Unpickling runs code: use only trusted texts."""
    return pickle.loads(base64.b64decode(encoded))
