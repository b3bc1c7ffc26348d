"""The MXNet that the process has imported."""

from __future__ import annotations

from hvdtune._native import find_mxnet, push_mxnet

__all__ = ["find_mxnet", "push_mxnet"]
