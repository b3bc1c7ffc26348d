"""Which of Lightning's two packages this process uses.

``lightning`` contains a copy of ``pytorch_lightning`` under the name ``lightning.pytorch``; the two
do not share classes. The program will use the Trainer of the package that it has imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import Any

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
OLDEST = (2, 6)
#: The variable in which a program tells its ranks which package it uses.
CHOSEN = "HVDTUNE_LIGHTNING_PACKAGE"
_NEEDED = "hvdtune.lightning needs PyTorch Lightning 2.6"
_COMMAND = "pip install 'hvdtune[lightning]'"


def _is_installed(name: str) -> bool:
    return find_spec(name.partition(".")[0]) is not None


def _choose() -> str:
    """The package that is already imported or that was named; else the first installed one."""
    for name in _PACKAGES:
        if sys.modules.get(name) is not None:
            return name
    if os.environ.get(CHOSEN) in _PACKAGES:
        return os.environ[CHOSEN]
    for name in _PACKAGES:
        if _is_installed(name):
            return name
    raise ImportError(f"{_NEEDED}, which is not installed here. Install it with: {_COMMAND}")


def load() -> Any:
    """Lightning's package for training. Raises ImportError if it is missing or too old."""
    package = importlib.import_module(_choose())
    version = package.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ImportError(
            f"{_NEEDED}; {package.__name__} here is {version}. Upgrade it with: {_COMMAND}"
        )
    importlib.import_module(f"{package.__name__}.plugins.environments")
    return package


pl: Any = load()
"""``lightning.pytorch`` or ``pytorch_lightning``."""
