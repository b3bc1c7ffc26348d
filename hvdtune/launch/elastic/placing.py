"""Which rank is where, in a generation of an elastic job.

Ranks are grouped by host. The host with the oldest process comes first, and so does the oldest
process of a host: the oldest of all is rank 0. Unlike those, a local rank is the number of the
process's slot on its host, for life: a process has its GPU by it. So nobody has the local rank of a
slot without a process, and the local size counts such a slot if one above it has a process.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdtune.launch.allocation.hosts import Slot


def place(seats: Sequence[tuple[str, int]]) -> list[Slot]:
    """Give processes their places; `seats` are (host, number), from the oldest process on.

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
    """The slots that new processes at `seats` must expect beside the `others`, all older.

    Of more than `most` processes the last are spares: each expects the last slot that there is.
    """
    inside = [*others, *seats][:most]
    slots = place(inside)[len(others) :]
    spares = seats[len(slots) :]
    return [*slots, *(place([*inside[:-1], seat])[-1] for seat in spares)]
