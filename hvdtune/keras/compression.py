"""Gradient compression of the tensors of Keras' backend."""

from __future__ import annotations

from typing import Any

from hvdtune.faces.compression import Compressor, NoneCompressor
from hvdtune.keras import backends


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16. Magnitudes above 65504 become infinite."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """`tensor` as float16 if it is of a floating type, else the tensor itself."""
        backend = backends.current()
        if not backend.is_floating(tensor):
            return tensor, None
        return backend.cast(tensor, "float16"), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """`tensor` in the type that `compress` was given."""
        return tensor if ctx is None else backends.current().cast(tensor, ctx)


class Compression:
    """The compressors to choose from: `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
