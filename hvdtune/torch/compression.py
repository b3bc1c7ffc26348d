"""Gradient compression: what travels may be smaller than what was computed."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Turns a tensor into what is sent and the received tensor back. Subclass it for your own.

    All ranks must use the same compressor: it decides the type of what is negotiated.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and whatever ``decompress`` needs to undo this."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The received tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16. Magnitudes above 65504 become infinite."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """``tensor`` as float16 when it is of a floating type, else the tensor itself."""
        dtype = getattr(tensor, "dtype", None)
        if dtype is None or not dtype.is_floating_point or tensor.is_mkldnn:
            return tensor, None  # the collective says what it takes
        return tensor.to(torch.float16), dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """``tensor`` in the type that ``compress`` was given."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors to choose from: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
