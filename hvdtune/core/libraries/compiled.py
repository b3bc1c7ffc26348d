"""Files that the build has put into the package besides the engine's module."""

from __future__ import annotations

import os
from importlib.util import find_spec


def compiled(name: str) -> str:
    """The path of a file that was compiled; "" if this hvdtune was built without it."""
    spec = find_spec("hvdtune")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    return ""
