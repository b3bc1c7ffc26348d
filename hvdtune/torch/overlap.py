"""Whether gradients are reduced while the backward pass goes on."""

from __future__ import annotations

import torch

from hvdtune.core import world
from hvdtune.core.machine import usable_cpus


def pays() -> bool:
    """Whether this host has a CPU left for reducing while all its ranks compute.

    Where it has none, whatever the engine does meanwhile is taken from the backward pass, and the
    changes between the two cost more besides.
    """
    return world.local_size() * torch.get_num_threads() < usable_cpus()
