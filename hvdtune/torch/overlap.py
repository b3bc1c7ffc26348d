"""Whether gradients are reduced while the backward pass goes on."""

from __future__ import annotations

import torch

from hvdtune.core import world


def wanted() -> bool:
    """Whether this rank is for it: the setting says so or, if it is ``auto``, it pays.

    It pays where the host has a CPU left while all ranks of the job compute. Where it has none,
    whatever the engine does meanwhile is taken from the backward pass, and the changes between the
    two cost more besides. Ranks with different numbers of threads, or different settings, may have
    different answers.
    """
    choice = world.settings().overlap
    if choice == "auto":
        return world.local_size() * torch.get_num_threads() < world.host_cpus()
    return bool(choice == "on")


def wanted_on_gpu() -> bool:
    """The same of gradients on a GPU: yes, unless the setting forbids it.

    What reduces them takes next to nothing from the backward pass.
    """
    return bool(world.settings().overlap != "off")
