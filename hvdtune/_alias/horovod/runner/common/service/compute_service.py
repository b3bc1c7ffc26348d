"""The service through which the processes of TensorFlow's data service find each other."""

from __future__ import annotations

from hvdtune.compute_service.client import ComputeClient
from hvdtune.compute_service.service import ComputeService

__all__ = ["ComputeClient", "ComputeService"]
