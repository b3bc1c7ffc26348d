"""Which rank is where, in a generation of an elastic job.

Ranks are grouped by host. The host with the oldest process comes first, and so does the oldest
process of a host: the oldest of all is rank 0. The local rank, however, is the number of the
process's slot on its host. It stays the same for life, because the process chooses its GPU by it.
So no process has the local rank of an empty slot, and the local size counts an empty slot if a
higher one has a process.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdtune.launch.allocation.hosts import Slot


def place(seats: Sequence[tuple[str, int]]) -> list[Slot]:
    """Give processes their places; `seats` are (host, number), the oldest process first.

    The result has the same order.
    """
    numbers: dict[str, list[int]] = {}
    for host, number in seats:
        numbers.setdefault(host, []).append(number)
    order = [(host, number) for host in numbers for number in numbers[host]]
    ranks = {seat: rank for rank, seat in enumerate(order)}
    slots = []
    for host, number in seats:
        peers = [peer for peer in numbers if number in numbers[peer]]
        slots.append(
            Slot(
                hostname=host,
                rank=ranks[host, number],
                size=len(seats),
                local_rank=number,
                local_size=max(numbers[host]) + 1,
                cross_rank=peers.index(host),
                cross_size=len(peers),
            )
        )
    return slots


def planned(
    others: Sequence[tuple[str, int]], seats: Sequence[tuple[str, int]], most: int
) -> list[Slot]:
    """The places that new processes at `seats` can expect besides the `others`, all older.

    If there are more than `most` processes, the last are spares: each expects the last place.
    """
    inside = [*others, *seats][:most]
    slots = place(inside)[len(others) :]
    spares = seats[len(slots) :]
    return [*slots, *(place([*inside[:-1], seat])[-1] for seat in spares)]
