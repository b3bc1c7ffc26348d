"""The MXNet that the process has imported."""

from __future__ import annotations

from hvdtune._native import find_mxnet, push_mxnet, push_mxnet_step_mark

__all__ = ["find_mxnet", "push_mxnet", "push_mxnet_step_mark"]
