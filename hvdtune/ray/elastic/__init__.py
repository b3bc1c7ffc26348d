"""Elastic jobs on Ray: the contents of Horovod's `horovod.ray.elastic` and `elastic_v2`.

Knows the driver of `launch.elastic`, and the actors of `hvdtune.ray`.
"""

from __future__ import annotations

from hvdtune.ray.elastic.discovery import RayHostDiscovery, TestDiscovery
from hvdtune.ray.elastic.executor import ElasticRayExecutor, ElasticSettings

__all__ = ["ElasticRayExecutor", "ElasticSettings", "RayHostDiscovery", "TestDiscovery"]
