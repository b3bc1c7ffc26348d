"""Process sets: groups of ranks that run collectives of their own.

In this version sets are registered when the job starts, with ``init(process_sets=[…])``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ProcessSet:
    """Some ranks of the job.

    ``process_set_id`` is None until the set is registered by ``init``; ``ranks`` are global ranks,
    ascending.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Describe a set. Raises ValueError for anything but an iterable of ints."""
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise ValueError(
                "a process set is made from an iterable of ranks; communicators are not supported "
                f"by this version: {ranks_or_comm!r}"
            ) from None
        if any(type(rank) is not int for rank in ranks):
            raise ValueError(f"the ranks of a process set must be ints: {ranks!r}")
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """Members, or None while the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """Place of this process in the set, or None while the set is not registered.

        Raises ValueError on a process that is not in it.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        from hvdtune.core import world

        if world.rank() not in self.ranks:
            raise ValueError(
                f"rank {world.rank()} is not part of provided process set {self.process_set_id}"
            )
        return self.ranks.index(world.rank())

    def included(self) -> bool | None:
        """Whether this process is in the set; None if its ranks are unknown."""
        if self.ranks is None:
            return None
        from hvdtune.core import world

        return world.rank() in self.ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


def _global_set() -> ProcessSet:
    everybody = ProcessSet([])
    everybody.process_set_id = 0
    return everybody


global_process_set = _global_set()
_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set while the job runs: not possible in this version, raises ValueError."""
    raise ValueError(
        f"cannot add {process_set}: this version registers process sets when the job starts; pass "
        "them to init(process_sets=[...]) (HOROVOD_DYNAMIC_PROCESS_SETS=1 is not supported)"
    )


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a set; False for the global set and for sets that are not registered.

    Raises ValueError for a registered one: this version keeps sets until the job ends.
    """
    if process_set.process_set_id in (None, 0):
        return False
    raise ValueError(f"cannot remove {process_set}: process sets stay until the job ends")


def id_of(process_set: ProcessSet) -> int:
    """The number under which the engine knows a set. Raises ValueError if it does not."""
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set} has not been registered; pass it to init(process_sets=[...])"
        )
    return process_set.process_set_id


def assign(sets: Sequence[ProcessSet], size: int) -> list[list[int]]:
    """Number the sets of an init, and return the ranks of each from 1 on.

    Raises ValueError for an empty set, a rank outside the job or given twice, duplicate sets, and
    too many sets.
    """
    from hvdtune import _native

    limit = _native.MAX_PROCESS_SETS - 1  # one of them is the global set
    if len(sets) > limit:
        raise ValueError(
            f"Horovod initialization failed: init() was given {len(sets)} process sets, but this "
            f"version has room for {limit}"
        )
    known: list[list[int]] = [list(range(size))]
    for index, process_set in enumerate(sets):
        ranks = process_set.ranks or []
        if not ranks:
            raise ValueError(f"process set {index} of init() has no ranks")
        if len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= size:
            raise ValueError(
                f"Horovod initialization failed: process set {index} of init(), {ranks}, needs "
                f"different ranks from 0 to {size - 1}"
            )
        if ranks in known:
            raise ValueError(f"process set {index} of init(), {ranks}, is a duplicate")
        known.append(ranks)
    for index, process_set in enumerate(sets):
        process_set.process_set_id = index + 1
        _registered.append(process_set)
    global_process_set.ranks = known[0]
    return known[1:]


def release() -> None:
    """The job ends: its sets are not registered any more."""
    for process_set in _registered:
        process_set.process_set_id = None
    _registered.clear()
    global_process_set.ranks = []
