"""Gradient compression: the tensor that is sent may be smaller than the one that was computed."""

from __future__ import annotations

from typing import Any


class Compressor:
    """Makes the tensor to send, and restores the received one. Subclass it for your own.

    All ranks must use the same compressor: it decides the type of what is negotiated.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever ``decompress`` needs to undo this."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The received tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor
