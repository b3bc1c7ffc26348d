"""The module that links Gloo, which lies beside the engine's where hvdtune was built with Gloo."""

from __future__ import annotations

import os
from importlib.util import find_spec

#: How to get it; ends a sentence.
ADVICE = (
    "install Gloo (Debian: libgloo-dev) and then hvdtune from source, with pip install "
    "--no-binary hvdtune hvdtune, or pip install . in its folder"
)


def module_path() -> str:
    """Where the module is; "" where hvdtune was built without Gloo."""
    spec = find_spec("hvdtune")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(folder, "_gloo.so")
        if os.path.isfile(path):
            return path
    return ""


def choose() -> str:
    """The module's path. Raises ValueError where there is none."""
    path = module_path()
    if not path:
        raise ValueError(f"this hvdtune was built without Gloo. To get it: {ADVICE}")
    return path
