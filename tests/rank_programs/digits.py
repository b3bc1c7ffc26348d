"""Rank program: examples/digits.py, and what it ends with."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hvdtune

with contextlib.suppress(ModuleNotFoundError):
    import torch  # noqa: F401  - ranks are forked from a process that has imported it

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.py"


def train(epochs: int, *more: str) -> dict[str, Any]:
    """Train by the example; its weights at the end, and what it prints."""
    sys.path.insert(0, str(Path(hvdtune.__file__).with_name("_alias")))
    spec = importlib.util.spec_from_file_location("digits_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    models = []

    class Kept(module.Net):
        def __init__(self) -> None:
            super().__init__()
            models.append(self)

    module.Net = Kept
    sys.argv = ["digits.py", "--epochs", str(epochs), *more]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        module.main()
    parameters = [p.detach().numpy().reshape(-1) for p in models[0].parameters()]
    return {"weights": np.concatenate(parameters), "printed": printed.getvalue()}
