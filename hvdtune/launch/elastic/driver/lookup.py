"""A process that asks the resolver about hosts, however long that takes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hvdtune.launch.allocation.hosts import is_local
from hvdtune.launch.remote.rendezvous import own_address_towards


def main(words: Sequence[str]) -> int:
    """Print a JSON object: whether each host is this machine, and if not, our address there."""
    print(
        json.dumps({name: None if is_local(name) else own_address_towards(name) for name in words})
    )
    return 0
