"""Process sets: groups of ranks that run collectives of their own.

Sets are registered by ``init(process_sets=[…])`` or, in a job started with
HOROVOD_DYNAMIC_PROCESS_SETS=1, by `add_process_set` while it runs. The engine numbers them: 0 is
the whole job, and numbers of removed sets are given out again, longest removed first.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from hvdtune.core import mpi_communicators
from hvdtune.core.exceptions import HorovodInternalError

_INT32 = 2**31 - 1


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

        Raises ValueError if its number stands for no set, or for another one, any more.
        """
        return None if self.process_set_id is None else len(_members_of(self))

    def rank(self) -> int | None:
        """Place of this process in the set, or None while the set is not registered.

        Raises ValueError on a process that is not in it.
        """
        if self.process_set_id is None:
            return None
        members = _members_of(self)
        from hvdtune.core import world

        if world.rank() not in members:
            raise ValueError(
                f"rank {world.rank()} is not part of provided process set {self.process_set_id}"
            )
        return members.index(world.rank())

    def included(self) -> bool | None:
        """Whether this process's global rank is in the set; None if its ranks are unknown."""
        if self.ranks is None:
            return None
        from hvdtune.core import world

        return world.rank() in self.ranks

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Copies of the global set, as of an optimizer that refers to it, are the global set.
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

# The engine takes one addition or removal at a time, so that ranks whose threads bring them in
# different orders disagree instead of waiting for each other.
_changing = threading.Lock()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set while the job runs; returns it, with its number.

    Every process of the job calls this with the same ranks, whether it is among them or not, and
    waits for the others. Threads may add and remove sets at the same time; they are served one
    after another, so on all processes they must come in the same order.

    Raises ValueError, on every process, for ranks that do not exist or are given twice, for ranks
    of which there is a set already ("duplicate process set"), and when processes pass different
    ranks or remove a set instead; the job goes on. Also raises ValueError without
    HOROVOD_DYNAMIC_PROCESS_SETS=1 and when the job ends meanwhile, NotImplementedError for a
    communicator whose ranks are not known.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        raise NotImplementedError(
            f"cannot add {process_set}: sets made from communicators are registered by "
            "init(process_sets=[...]); give add_process_set() a list of ranks"
        )
    _check_dynamic("added")
    _give_number(process_set, _register(process_set.ranks))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a set on all processes; waits until every process of the job has called it.

    Returns False, at once, for the global set and for one that is not registered; otherwise True,
    and the object has no number any more (it can be added again). Operations that still wait in
    the set fail with HorovodInternalError, "Process set has been removed".

    Raises ValueError, on every process, when processes remove different sets or add one; without
    HOROVOD_DYNAMIC_PROCESS_SETS=1; and when the job ends meanwhile.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"remove_process_set takes a ProcessSet, not {process_set!r}")
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    registered = _ranks_of.get(number)
    if registered is None or registered != process_set.ranks:
        return False
    _check_dynamic("removed")
    with _changing:
        _run(lambda engine: engine.remove_process_set(number))
        _ranks_of.pop(number, None)
    process_set.process_set_id = None
    return True


def id_of(process_set: ProcessSet) -> int:
    """The number under which the engine knows a set. Raises ValueError if it does not.

    Raises TypeError for something that is no ProcessSet.
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


def static_ranks(given: Sequence[ProcessSet], size: int) -> list[list[int]]:
    """The ranks of the sets that the engine starts with, in the order of their numbers from 1 on.

    Duplicates appear once (`adopt` reports them), sets made from communicators not at all. Raises
    ValueError for an empty set, a rank outside the job or given twice, and too many sets.
    """
    from hvdtune import _native

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
    """The engine runs, with these sets."""
    whole = list(range(size))
    _ranks_of.clear()
    _ranks_of.update({number: list(ranks) for number, ranks in enumerate([whole, *static])})
    global_process_set.ranks = whole


def adopt(
    given: Sequence[ProcessSet],
    members: mpi_communicators.Members | None,
    somebody_has_communicators: bool,
) -> None:
    """Give every set its number; what the job does not know yet is registered first.

    Collective if there is anything to register or `somebody_has_communicators`. Sets made from
    communicators, which differ from process to process, are registered for all of them.

    Raises ValueError ("is a duplicate") if a set occurs twice or is the whole job; the others have
    their numbers then, and the job goes on.
    """
    ranks_of_given = [_resolved(process_set, members) for process_set in given]
    wanted = [
        ranks for ranks, process_set in zip(ranks_of_given, given, strict=True)
        if process_set.mpi_comm is None
    ]  # fmt: skip
    if somebody_has_communicators:
        mine = [r for r, s in zip(ranks_of_given, given, strict=True) if s.mpi_comm is not None]
        wanted += _union(mine)
    for ranks in wanted:
        if _number_of(ranks) is None:
            _register(ranks)
    seen = {0}
    duplicates = []
    for index, (ranks, process_set) in enumerate(zip(ranks_of_given, given, strict=True)):
        number = _number_of(ranks)
        assert number is not None
        if number in seen:
            duplicates.append(f"process set {index} of init(), {ranks}, is a duplicate")
            continue
        seen.add(number)
        process_set.ranks = list(ranks)
        _give_number(process_set, number)
    if duplicates:
        raise ValueError("; ".join(duplicates) + "; the job runs, with the other sets")


def release() -> None:
    """The job ends: its sets are not registered any more."""
    for process_set in list(_objects):
        process_set.process_set_id = None
    _objects.clear()
    _ranks_of.clear()
    global_process_set.ranks = []


def renew_lock() -> None:
    """After a fork: no thread of the child will ever open the lock."""
    global _changing
    _changing = threading.Lock()


# ---- helpers ------------------------------------------------------------------------------------


def _members_of(process_set: ProcessSet) -> list[int]:
    from hvdtune.core import world

    world.topology()  # before init there are no sets to look for
    members = _ranks_of.get(process_set.process_set_id or 0)
    # The number may have been removed, and even given to another set.
    if members is None or members != process_set.ranks:
        raise ValueError(
            f"process set {process_set.process_set_id}, {process_set.ranks}, does not exist or "
            "has not been registered"
        )
    return members


def _check_dynamic(what: str) -> None:
    from hvdtune.core import world

    world.engine()
    if not world.settings().dynamic_process_sets:
        raise ValueError(
            f"process sets can be {what} only in a job started with "
            'HOROVOD_DYNAMIC_PROCESS_SETS=1 or init(process_sets="dynamic")'
        )


def _register(ranks: Sequence[int]) -> int:
    """Have the engine, on all ranks, make a set; its number."""
    from hvdtune.core import operations

    # Wrong ranks are for the coordinator to refuse, everywhere; but they must fit its message.
    shown = [max(-_INT32, min(_INT32, rank)) for rank in ranks]
    with _changing:
        number = _run(lambda engine: engine.add_process_set(shown))[0]
        _ranks_of[number] = list(ranks)
        operations.forget_names(number)
    return number


def _run(submit: Any) -> list[int]:
    """Submit a change of the job's sets, wait for it, return the engine's numbers."""
    from hvdtune.core import operations, world

    engine = world.engine()
    try:
        _, numbers = operations.wait_native(engine, submit(engine))
    except HorovodInternalError as error:
        raise ValueError(f"Horovod is shutting down: {error}") from None
    if not world.is_initialized() or world.engine() is not engine:
        raise ValueError("Horovod is shutting down")
    return numbers


def _give_number(process_set: ProcessSet, number: int) -> None:
    process_set.process_set_id = number
    _objects.add(process_set)


def _number_of(ranks: list[int]) -> int | None:
    return next((number for number, known in list(_ranks_of.items()) if known == ranks), None)


def _resolved(process_set: ProcessSet, members: mpi_communicators.Members | None) -> list[int]:
    if process_set.mpi_comm is not None:
        assert members is not None
        return members.ranks_of(process_set.mpi_comm)
    return process_set.ranks or []


def _union(mine: list[list[int]]) -> list[list[int]]:
    """All processes' lists, in an order that all of them see: by place in the list, then rank."""
    from hvdtune.core.objects import allgather_object

    everybodys: list[list[list[int]]] = allgather_object(mine, name="init.process_sets")
    longest = max(map(len, everybodys))
    return [lists[i] for i in range(longest) for lists in everybodys if i < len(lists)]
