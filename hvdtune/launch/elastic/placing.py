"""Which rank is where, in a generation of an elastic job.

Ranks are grouped by host. The host with the oldest process comes first, and so does the oldest
process of a host: the oldest of all is rank 0. Unlike those, local ranks follow the processes'
numbers on their host, which they keep for life (a process has its GPU by it).
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdtune.launch.allocation.hosts import Slot


def place(seats: Sequence[tuple[str, int]]) -> list[Slot]:
    """Give processes their places; `seats` are (host, number), from the oldest process on.

    The result has the same order. Local ranks are the numbers themselves if a host's have no gap.
    """
    numbers: dict[str, list[int]] = {}
    for host, number in seats:
        numbers.setdefault(host, []).append(number)
    order = [(host, number) for host in numbers for number in numbers[host]]
    ranks = {seat: rank for rank, seat in enumerate(order)}
    slots = []
    for host, number in seats:
        local_rank = sorted(numbers[host]).index(number)
        peers = [peer for peer in numbers if len(numbers[peer]) > local_rank]
        slots.append(
            Slot(
                hostname=host,
                rank=ranks[host, number],
                size=len(seats),
                local_rank=local_rank,
                local_size=len(numbers[host]),
                cross_rank=peers.index(host),
                cross_size=len(peers),
            )
        )
    return slots
