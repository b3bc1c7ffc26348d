"""Compression of MXNet's NDArrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from mxnet.ndarray import NDArray

from hvdtune.faces.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point NDArrays as float16. Magnitudes above 65504 become infinite."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, Any]:
        """``tensor`` as float16 if it is float32 or float64, else the NDArray itself."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype("float16"), tensor.dtype

    @staticmethod
    def decompress(tensor: NDArray, ctx: Any) -> NDArray:
        """``tensor`` in the type that ``compress`` was given."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressors to choose from: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
