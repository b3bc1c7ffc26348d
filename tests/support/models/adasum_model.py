"""Adasum in NumPy, in float64 throughout.

    adasum(a, b) = (1 - a·b / (2 |a|²)) a + (1 - a·b / (2 |b|²)) b

for one tensor of two ranks, and over a binary tree for more: ranks 0 and 1, 2 and 3, …, then pairs
of pairs. A coefficient is 1 where the squared norm is below sqrt(DBL_MIN).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

NEGLIGIBLE = math.sqrt(sys.float_info.min)


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Adasum of two tensors."""
    dot = float(np.sum(a * b))
    norms = float(np.sum(a * a)), float(np.sum(b * b))
    of_a, of_b = (1.0 if norm < NEGLIGIBLE else 1.0 - dot / (2.0 * norm) for norm in norms)
    return np.asarray(of_a * a + of_b * b)


def tree(tensors: Sequence[np.ndarray]) -> np.ndarray:
    """Adasum of the ranks' tensors, a power of two of them."""
    level = [np.asarray(tensor, np.float64) for tensor in tensors]
    assert len(level) & (len(level) - 1) == 0, len(level)
    while len(level) > 1:
        level = [pair(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0]
