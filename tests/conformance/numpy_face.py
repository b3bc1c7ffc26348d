"""The NumPy face: ``import hvdtune``."""

from __future__ import annotations

from typing import Any

import numpy as np
from conformance import program
from conformance.face import Face
from conformance.reference import DTYPES

import hvdtune


class NumpyFace(Face):
    name = "numpy"
    hvd = hvdtune
    kind = np.ndarray
    dtypes = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")

    def tensor(self, values: np.ndarray, dtype: str) -> np.ndarray:
        return np.array(values, dtype)

    def values(self, tensor: np.ndarray) -> np.ndarray:
        return tensor

    def dtype(self, tensor: np.ndarray) -> str:
        return str(tensor.dtype.name)

    def strided(self, values: np.ndarray) -> np.ndarray:
        return np.repeat(values, 2, axis=-1)[..., ::2]

    def read_only(self, values: np.ndarray) -> np.ndarray:
        array = values.copy()
        array.flags.writeable = False
        return array


FACE = NumpyFace()


def run(blocks: tuple[str, ...], thorough: bool = False) -> Any:
    """The rank program."""
    return program.run(FACE, blocks, thorough)
