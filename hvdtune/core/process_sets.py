"""Process sets: groups of ranks that run their own collectives, and the registered ones.

The engine numbers them: 0 is the whole job. Numbers of removed sets are reused in the order of
removal. `membership` registers the sets.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from hvdtune.core import world
from hvdtune.core.libraries import mpi_communicators


class ProcessSet:
    """Some ranks of the job.

    ``process_set_id`` is None while the set is not registered; ``ranks`` are global ranks,
    ascending, and None for a set made from a communicator until ``init`` has registered it.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        """Describe a set by its ranks, in any order, or by an mpi4py communicator.

        Raises ValueError for members that are not exactly ``int`` (NumPy's are not), for a
        communicator without processes and for anything else.
        """
        if mpi_communicators.is_communicator(ranks_or_comm):
            mpi_communicators.check(ranks_or_comm)
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise ValueError(
                "a process set is made from an iterable of ranks or an mpi4py communicator"
                f"{mpi_communicators.absence()}, not from {ranks_or_comm!r}"
            ) from None
        if any(type(rank) is not int for rank in ranks):
            raise ValueError(f"the ranks of a process set must be ints: {ranks!r}")
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """Members, or None while the set is not registered.

        Raises ValueError if its number no longer stands for a set, or now for another one.
        """
        return None if self.process_set_id is None else len(_members_of(self))

    def rank(self) -> int | None:
        """Place of this process in the set, or None while the set is not registered.

        Raises ValueError on a process that is not in it.
        """
        if self.process_set_id is None:
            return None
        members = _members_of(self)
        if world.rank() not in members:
            raise ValueError(
                f"rank {world.rank()} is not part of provided process set {self.process_set_id}"
            )
        return members.index(world.rank())

    def included(self) -> bool | None:
        """Whether this process's global rank is in the set; None if its ranks are unknown."""
        if self.ranks is None:
            return None
        return world.rank() in self.ranks

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Copies of the global set, such as an optimizer's that refers to it, are the global set.
        return "global_process_set" if self is global_process_set else super().__reduce__()

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

_ranks_of: dict[int, list[int]] = {}  # the registered sets of the running job
_objects: weakref.WeakSet[ProcessSet] = weakref.WeakSet()  # those that were given a number


def id_of(process_set: ProcessSet) -> int:
    """The number under which the engine knows a set. Raises ValueError if it does not.

    Raises TypeError if `process_set` is not a ProcessSet.
    """
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise TypeError(
            f"process_set must be a ProcessSet, not {process_set!r}; make one from the ranks with "
            "ProcessSet([...]) and register it"
        ) from None
    if number == 0:
        return 0
    if number is None:
        if process_set.ranks and world.is_initialized() and process_set.ranks[-1] >= world.size():
            raise ValueError(
                f"{process_set} cannot be used: rank {process_set.ranks[-1]} does not exist in a "
                f"job of {world.size()} processes"
            )
        raise ValueError(
            f"{process_set} has not been registered; pass it to init(process_sets=[...]) or "
            "add_process_set()"
        )
    if _ranks_of.get(number) != process_set.ranks:
        raise ValueError(f"{process_set} does not exist or has not been registered")
    return number


# ---- at init and shutdown -----------------------------------------------------------------------


def given_to_init(process_sets: Sequence[ProcessSet] | str | None) -> list[ProcessSet]:
    """The sets in init's argument; "dynamic" stands for none and sets the variable.

    Raises ValueError for anything else.
    """
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'init(process_sets="{process_sets}"): a list of process sets or "dynamic" is '
                "accepted"
            )
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    try:
        given = list(process_sets)
    except TypeError:
        raise ValueError(
            f"init(process_sets=...) takes a list of process sets, not {process_sets!r}"
        ) from None
    for index, process_set in enumerate(given):
        if not isinstance(process_set, ProcessSet):
            raise ValueError(
                f"init(process_sets=...): item {index} is {process_set!r}, not a ProcessSet"
            )
    return given


def possible(given: Sequence[ProcessSet], size: int) -> list[ProcessSet]:
    """The given sets that an elastic job with `size` processes can have, in their order.

    A set of all ranks is the job itself, which needs no registration.
    """
    found = []
    for process_set in given:
        if process_set.ranks == list(range(size)):
            give_number(process_set, 0)
        elif all(rank < size for rank in process_set.ranks or ()):
            found.append(process_set)
    return found


def static_ranks(given: Sequence[ProcessSet], size: int) -> list[list[int]]:
    """The ranks of the sets that the engine starts with, in the order of their numbers from 1 on.

    Duplicates appear once (`adopt` reports them), sets made from communicators not at all. Raises
    ValueError for an empty set, a rank outside the job or given twice, and too many sets.
    """
    import hvdtune._native as _native

    whole = list(range(size))
    different: list[list[int]] = []
    for index, process_set in enumerate(given):
        if process_set.mpi_comm is not None or process_set is global_process_set:
            continue
        ranks = process_set.ranks or []
        if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= size:
            raise ValueError(
                f"Horovod initialization failed: process set {index} of init(), {ranks}, needs "
                f"different ranks from 0 to {size - 1}"
            )
        if ranks != whole and ranks not in different:
            different.append(ranks)
    limit = _native.MAX_PROCESS_SETS - 1  # one of them is the global set
    if len(different) > limit:
        raise ValueError(
            f"Horovod initialization failed: init() was given {len(different)} process sets, but "
            f"this version has room for {limit}"
        )
    return different


def start(static: Sequence[Sequence[int]], size: int) -> None:
    """The engine has started, with these sets."""
    whole = list(range(size))
    _ranks_of.clear()
    _ranks_of.update({number: list(ranks) for number, ranks in enumerate([whole, *static])})
    global_process_set.ranks = whole


def registered(number: int) -> list[int] | None:
    """The ranks of the set that has this number."""
    return _ranks_of.get(number)


def all_registered() -> dict[int, list[int]]:
    """The ranks of every set of the running job, by its number; 0 is the job itself.

    Raises ValueError before init.
    """
    world.topology()
    return {number: list(ranks) for number, ranks in sorted(_ranks_of.items())}


def register(number: int, ranks: Sequence[int]) -> None:
    """A set with this number now exists in the running job."""
    _ranks_of[number] = list(ranks)


def unregister(number: int) -> None:
    """The set with this number no longer exists."""
    _ranks_of.pop(number, None)


def release() -> None:
    """The job ends: its sets are no longer registered."""
    for process_set in list(_objects):
        process_set.process_set_id = None
    _objects.clear()
    _ranks_of.clear()
    global_process_set.ranks = []


# ---- helpers ------------------------------------------------------------------------------------


def _members_of(process_set: ProcessSet) -> list[int]:
    world.topology()  # before init there are no sets
    members = _ranks_of.get(process_set.process_set_id or 0)
    # The number may have been removed, and even given to another set.
    if members is None or members != process_set.ranks:
        raise ValueError(
            f"process set {process_set.process_set_id}, {process_set.ranks}, does not exist or "
            "has not been registered"
        )
    return members


def give_number(process_set: ProcessSet, number: int) -> None:
    """The engine now knows this set by a number."""
    process_set.process_set_id = number
    _objects.add(process_set)


def number_of(ranks: list[int]) -> int | None:
    """The number of the registered set of these ranks."""
    return next((number for number, known in list(_ranks_of.items()) if known == ranks), None)
