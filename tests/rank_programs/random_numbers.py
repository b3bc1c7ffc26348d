"""A rank program that draws the first numbers of its process."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def first_numbers() -> dict[str, Any]:
    """By Python, NumPy and PyTorch; and what gives sets their order."""
    return {
        "python": random.random(),
        "numpy": float(np.random.random()),
        "torch": float(torch.rand(1)),
        "hash": hash("hvdtune"),
    }
