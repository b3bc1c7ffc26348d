"""Horovod's basic functions as methods of an object."""

from __future__ import annotations

from hvdtune.faces.basics import HorovodBasics

__all__ = ["HorovodBasics"]
