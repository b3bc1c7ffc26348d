"""The place that the driver of an elastic job gives a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A process's place in one generation of its job.

    `environment` has the variables of the place; those with None get back the value that they had
    before a place first named them (HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT have none). `newcomers`
    are the ranks that were not in the generation before. `synchronise`: states may differ.
    """

    generation: int
    environment: Mapping[str, str | None]
    newcomers: frozenset[int]
    synchronise: bool
