"""The process sets of the running job: adding, removing, and adopting those of init.

Sets are registered by ``init(process_sets=[…])`` or, in a job started with
HOROVOD_DYNAMIC_PROCESS_SETS=1, by `add_process_set` while it runs.

`operations` and `objects` are imported only when sets change, to keep `import hvdtune` quick.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hvdtune.core import process_sets as sets
from hvdtune.core import world
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.libraries import mpi_communicators
from hvdtune.core.process_sets import ProcessSet

_INT32 = 2**31 - 1

# The engine handles one addition or removal at a time, so that ranks whose threads submit them in
# different orders disagree instead of waiting for each other.
_changing = threading.Lock()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set while the job runs; returns it, with its number.

    Every process of the job calls this with the same ranks, whether it is among them or not, and
    waits for the others. Threads may add and remove sets at the same time; their calls run one
    after another, and must be in the same order on all processes.

    Raises ValueError, on every process, for ranks that do not exist or are given twice, for ranks
    that already form a set ("duplicate process set"), and if processes pass different ranks or
    remove a set instead; the job goes on. Also raises ValueError without
    HOROVOD_DYNAMIC_PROCESS_SETS=1 and if the job ends meanwhile, NotImplementedError for a
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
    sets.give_number(process_set, _register(process_set.ranks))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a set on all processes; waits until every process of the job has called it.

    Returns False, at once, for the global set and for one that is not registered; otherwise True,
    and the object has no number any more (it can be added again). Operations that still wait in
    the set fail with HorovodInternalError, "Process set has been removed".

    Raises ValueError, on every process, if processes remove different sets or add one. Also raises
    ValueError without HOROVOD_DYNAMIC_PROCESS_SETS=1 and if the job ends meanwhile.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"remove_process_set takes a ProcessSet, not {process_set!r}")
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    registered = sets.registered(number)
    if registered is None or registered != process_set.ranks:
        return False
    _check_dynamic("removed")
    with _changing:
        _run(lambda engine: engine.remove_process_set(number))
        sets.unregister(number)
    process_set.process_set_id = None
    return True


def adopt(
    given: Sequence[ProcessSet],
    members: mpi_communicators.Members | None,
    somebody_has_communicators: bool,
) -> None:
    """Give every set its number, after registering those that the job does not know yet.

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
        if sets.number_of(ranks) is None:
            _register(ranks)
    seen = {0}
    duplicates = []
    for index, (ranks, process_set) in enumerate(zip(ranks_of_given, given, strict=True)):
        number = sets.number_of(ranks)
        assert number is not None
        if number in seen:
            duplicates.append(f"process set {index} of init(), {ranks}, is a duplicate")
            continue
        seen.add(number)
        process_set.ranks = list(ranks)
        sets.give_number(process_set, number)
    if duplicates:
        raise ValueError("; ".join(duplicates) + "; the job runs, with the other sets")


def renew_lock() -> None:
    """After a fork: no thread of the child would ever release the old lock."""
    global _changing
    _changing = threading.Lock()


# ---- helpers ------------------------------------------------------------------------------------


def _check_dynamic(what: str) -> None:
    world.engine()
    if not world.settings().dynamic_process_sets:
        raise ValueError(
            f"process sets can be {what} only in a job started with "
            'HOROVOD_DYNAMIC_PROCESS_SETS=1 or init(process_sets="dynamic")'
        )


def _register(ranks: Sequence[int]) -> int:
    """Have the engine, on all ranks, make a set; return its number."""
    from hvdtune.core import operations

    # The coordinator refuses wrong ranks, on every rank; but they must fit its message.
    shown = [max(-_INT32, min(_INT32, rank)) for rank in ranks]
    with _changing:
        number = _run(lambda engine: engine.add_process_set(shown))[0]
        sets.register(number, ranks)
        operations.forget_names(number)
    return number


def _run(submit: Any) -> list[int]:
    """Submit a change of the job's sets, wait for it, return the engine's numbers."""
    from hvdtune.core import operations

    engine = world.engine()
    try:
        _, numbers = operations.wait_native(engine, submit(engine))
    except HorovodInternalError as error:
        raise ValueError(f"Horovod is shutting down: {error}") from None
    if not world.is_initialized() or world.engine() is not engine:
        raise ValueError("Horovod is shutting down")
    return numbers


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
