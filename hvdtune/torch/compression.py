"""Gradient compression of PyTorch's tensors."""

from __future__ import annotations

from typing import Any

import torch

from hvdtune.faces.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16. Magnitudes above 65504 become infinite."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """``tensor`` as float16 if it is of a floating type, else the tensor itself."""
        dtype = getattr(tensor, "dtype", None)
        if dtype is None or not dtype.is_floating_point or tensor.is_mkldnn:
            return tensor, None  # the collective reports wrong types
        return tensor.to(torch.float16), dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """``tensor`` in the type that ``compress`` was given."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors to choose from: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
