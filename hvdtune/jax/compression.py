"""Gradient compression of JAX's arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hvdtune.faces.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16. Magnitudes above 65504 become infinite."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """`tensor` as float16 if it is of a floating type, else the array itself."""
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            return tensor, None
        return tensor.astype(jnp.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """`tensor` in the type that `compress` was given."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressors to choose from: `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
