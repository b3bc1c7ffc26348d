"""Horovod's launcher as a function: `from horovod.runner import run`."""

from __future__ import annotations

from hvdtune.launch.function.call_site import run

from .. import _absent

__all__ = ["run"]

__getattr__ = _absent.refusing(__name__)
