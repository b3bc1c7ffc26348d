"""Compression of TensorFlow's tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdtune.faces.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16. Magnitudes above 65504 become infinite."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """``tensor`` as float16 if it is of a floating type, else the tensor itself."""
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """``tensor`` in the type that ``compress`` was given."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """The compressors to choose from: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
