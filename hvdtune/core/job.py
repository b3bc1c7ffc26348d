"""The life of the job that this process is part of: init, shutdown, and what they assemble."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import hvdtune._native as _native
from hvdtune.core import membership, world
from hvdtune.core import process_sets as sets
from hvdtune.core.driver import member, messages
from hvdtune.core.driver.place import Place
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.libraries import data_plane, devices, mpi, mpi_communicators, network
from hvdtune.core.meeting import places
from hvdtune.core.observation import control, log, marks, recording, stacks
from hvdtune.core.topology import Topology, detect, sub_job
from hvdtune.settings import knobs, variables

Hook = Callable[[], None]

_lock = threading.RLock()
_place: _Place | None = None
_launched_as = ""  # the job of the environment at the last init
_generations: dict[str, int] = {}  # successive inits of one job meet under different names
_sets_of_program: Sequence[sets.ProcessSet] | str | None = None  # of an elastic job
_hooks: list[tuple[Hook, Hook]] = []
_exit_registered = False

# Settings that decide how ranks talk to each other.
_AGREED = (
    "cache_capacity",
    "fusion_threshold",
    "chunk_size",
    "one_shot_limit",
    "nccl_bypass_limit",
    "disable_group_fusion",
    "num_nccl_streams",
    "autotune",
    "dynamic_process_sets",
    "cpu_operations",
)
# … and, in a job on several hosts, these as well: on one host they do nothing.
_AGREED_BETWEEN_HOSTS = (
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "nccl_between_hosts",
    "host_fanout",
)


class _NotMet(Exception):
    """The processes of an elastic job have not come together: they must ask for other places."""


class _Place(NamedTuple):
    """The place that init's `comm` gives this process."""

    topology: Topology
    members: mpi_communicators.Members | None  # None if MPI does not know the job
    has_communicators: bool  # some process of the job has sets made from communicators
    listed: bool = False  # `comm` is a list of ranks
    root: int = 0  # the number of the job's rank 0 among the launcher's ranks


def init(
    comm: Iterable[int] | Any = None,
    process_sets: Sequence[sets.ProcessSet] | str | None = None,
) -> None:
    """Join the job; blocks until all its processes have.

    A second call while initialised only registers those of `process_sets` that the job does not
    have yet, collectively; it ignores `comm`.

    Args:
        comm: which processes form the job.

            None (or an empty list): all processes that the launcher started (see
            `hvdtune.core.topology`); without a launcher, this one alone.

            An iterable of ints, ranks of the launcher's job: these processes form a job of their
            own, in which the k-th of the list has rank k. Disjoint lists give independent jobs.
            This works under every launcher; Horovod ignores the list without MPI. A process that
            is not in its list gets a ValueError; Horovod gives it the world communicator, where
            it waits for processes that never come.

            An mpi4py communicator: its processes, with their ranks in it. Disjoint communicators
            give independent jobs.
        process_sets: sets to register, as many as there is room for; every process must pass the
            same ones, or communicators. "dynamic" registers none and sets
            HOROVOD_DYNAMIC_PROCESS_SETS=1, which allows adding sets later.

    In an elastic job the driver decides which processes form the job, and waits until they can.
    Sets with ranks that the job does not have are left out. A later init without sets makes those
    of the first init again. If the job runs already, init returns at once: this process joins it
    when its elastic function begins, and until then has only an expected place.

    Raises:
        ValueError: "Horovod initialization failed: …" if the processes do not come together or
            disagree about the job, or if a set has ranks that do not exist or are given twice:
            the job then runs on no process. "… is a duplicate" for a set that occurs twice or is
            the whole job: the job runs all the same. Also for a `comm` that is none of the above,
            and in a fork of a rank, which has no place of its own in the job.
        TypeError: `comm` has members that are not ints.
        NotImplementedError: sets made from communicators in a job made from a list of ranks.
        SystemExit: an elastic job goes on without this process, or has no driver any more.
    """
    with _lock:
        starts = not world.is_running()
        if starts and member.is_elastic():
            place, given = _start_elastic(comm, process_sets)
        else:
            given = sets.given_to_init(process_sets)
            place = _start(comm, given) if starts else _place_for_more(given)
    if starts and world.is_running():
        for after_init, _ in _hooks:
            after_init()
    membership.adopt(given, place.members, place.has_communicators)


def _start_elastic(
    comm: Iterable[int] | Any, process_sets: Sequence[sets.ProcessSet] | str | None
) -> tuple[_Place, list[sets.ProcessSet]]:
    """Join the job in the place that its driver gives, as often as necessary, with possible sets.

    If the job runs already, and the elastic function has not begun, expect to join it there.
    """
    global _sets_of_program
    if world.is_fork():
        raise ValueError(f"init(): {world.absence()}")
    if process_sets is not None and not world.is_expected():  # a later init's sets are not kept
        _sets_of_program = process_sets
    every = sets.given_to_init(_sets_of_program)
    if (comm is not None and comm != []) or any(given.mpi_comm is not None for given in every):
        raise ValueError(
            "Horovod initialization failed: the driver of an elastic job decides which processes "
            "form it: init() takes neither ranks nor communicators there"
        )
    sets.release()  # those of an expected place
    while True:
        place = member.take_place()
        topology = detect(os.environ)
        given = sets.possible(every, topology.size)
        if place is None:
            settings = _read_settings()
            sets.start(sets.static_ranks(given, topology.size), topology.size)
            world.expect(topology, settings)
            _register_exit()
            return _Place(topology, None, False), given
        try:
            return _start(None, given, place), given
        except _NotMet as error:
            if member.is_finished():
                raise ValueError(
                    f"Horovod initialization failed: {error}; this process gets no other place, "
                    "because its elastic function has returned"
                ) from None
            log.write("info", f"init(): {error}; asking for another place")
            member.will_ask(messages.FAILURE, str(error))


def _start(
    comm: Iterable[int] | Any, given: list[sets.ProcessSet], elastic: Place | None = None
) -> _Place:
    global _place, _launched_as
    launched = detect(os.environ)
    if world.is_fork() and launched.job_id == _launched_as:
        raise ValueError(f"init(): {world.absence()}")
    settings = _read_settings()
    place = _find_place(comm, given, float(settings.start_timeout))
    topology = place.topology
    _check_size(topology)
    several = network.needs_place(os.environ, topology)
    if several and place.listed and topology.size < launched.size:
        raise ValueError(
            "Horovod initialization failed: init(comm=[...]): the ranks of a list must be all of "
            "the launcher's, or all on one host"
        )
    share = mpi_communicators.sharing(comm) if mpi_communicators.is_communicator(comm) else None
    before = elastic.generation - 1 if elastic else 0
    _generations[topology.job_id] = _generations.get(topology.job_id, before) + 1
    where = places.find(os.environ, topology, settings, launched, place.root, share)
    static, problem = _planned_sets(given, place)
    if problem:
        agreed = f"init(process_sets): {problem}"
    else:
        flag = " and communicators" if comm is None and place.has_communicators else ""
        agreed = f"init(process_sets={static}{flag})"
    cancellation = member.cancellation(elastic) if elastic else None
    try:
        options = _engine_options(topology, settings, where, static, agreed, cancellation)
        engine = _native.Engine(options)
    except Exception as error:
        if elastic and (isinstance(error, HorovodInternalError) or member.is_cancelled(elastic)):
            raise _NotMet(str(error)) from None
        raise problem or ValueError(f"Horovod initialization failed: {error}") from None
    places.met(topology)
    if problem:
        engine.shutdown()
        raise problem
    sets.start(static, topology.size)
    world.begin(engine, topology, settings)
    if elastic:
        member.has_joined(engine)
        engine.mark(marks.USER, elastic.generation, member.describe())
    _place, _launched_as = place, launched.job_id
    engine.set_stack_source(stacks.format_stacks)
    control.serve(engine, topology)
    _register_exit()
    problem_of_signal = recording.toggle_by_signal(settings, _running_engine)
    if problem_of_signal:
        _native.log("warning", __file__, 0, topology.rank, problem_of_signal)
    _name_strange_variables(topology)
    return place


def _read_settings() -> knobs.Settings:
    settings = knobs.from_environ()
    recording.check(settings)
    knobs.check_together(settings.as_dict())
    _native.configure_logging(settings.log_level, settings.log_hide_time)
    return settings


def _name_strange_variables(topology: Topology) -> None:
    """On rank 0, once: name the environment's variables of our prefixes that do nothing here."""
    if topology.rank == 0 and sum(_generations.values()) == 1:
        remarks = variables.remarks(os.environ)
        if remarks:
            _native.log("warning", __file__, 0, 0, " ".join(remarks))


def _find_place(comm: Iterable[int] | Any, given: list[sets.ProcessSet], patience: float) -> _Place:
    brings = any(process_set.mpi_comm is not None for process_set in given)
    if mpi_communicators.is_communicator(comm):
        topology, anybody_brings = mpi_communicators.place_in(comm, os.environ, brings, patience)
        return _Place(topology, mpi_communicators.Members(comm), anybody_brings)
    whole = detect(os.environ)
    if comm is None:
        return _Place(whole, mpi_communicators.Members.of_world(whole) if brings else None, brings)
    try:
        ranks = list(comm)
    except TypeError:
        raise ValueError(
            "init(comm=...) takes a list of ranks or an mpi4py communicator"
            f"{mpi_communicators.absence()}, not {comm!r}"
        ) from None
    if brings:
        raise NotImplementedError(
            "init(): process sets made from communicators need comm to be a communicator or None, "
            "not a list of ranks"
        )
    topology = sub_job(whole, ranks) if ranks else whole
    return _Place(topology, None, False, listed=True, root=ranks[0] if ranks else 0)


def _place_for_more(given: list[sets.ProcessSet]) -> _Place:
    """The running job's place, for sets that a later init registers."""
    global _place
    assert _place is not None
    brings = any(process_set.mpi_comm is not None for process_set in given)
    if brings and _place.listed:
        raise NotImplementedError(
            "init(): process sets made from communicators are not possible in a job made from a "
            "list of ranks"
        )
    if brings and _place.members is None:
        _place = _place._replace(members=mpi_communicators.Members.of_world(_place.topology))
    return _place._replace(has_communicators=brings)


def _planned_sets(
    given: list[sets.ProcessSet], place: _Place
) -> tuple[list[list[int]], ValueError | None]:
    """The sets to start with, or why there cannot be any.

    A process that knows it will fail still meets the others, so that they fail too, instead of
    waiting.
    """
    try:
        for process_set in given:
            if process_set.mpi_comm is not None and place.members is not None:
                place.members.ranks_of(process_set.mpi_comm)
        return sets.static_ranks(given, place.topology.size), None
    except ValueError as error:
        return [], error


def _check_size(topology: Topology) -> None:
    counted = (
        (topology.size, _native.MAX_RANKS, "a job of {} processes"),
        (topology.local_size, _native.MAX_RANKS_PER_HOST, "{} processes on one host"),
    )
    for count, most, what in counted:
        if count > most:
            raise ValueError(
                f"Horovod initialization failed: {what.format(count)}; at most {most} are supported"
            )


def _engine_options(
    topology: Topology,
    settings: knobs.Settings,
    where: network.MeetingPlace | None,
    static: list[list[int]],
    agreed_sets: str,
    cancellation: _native.Cancellation | None,
) -> _native.EngineOptions:
    meeting = _network_options(topology, settings, where)
    agreed = (*_AGREED, *(_AGREED_BETWEEN_HOSTS if meeting["network_host"] else ()))
    agreement = [f"{knobs.KNOBS[key].env}={getattr(settings, key)}" for key in agreed]
    agreement.append(f"HOROVOD_TIMELINE={'set' if settings.timeline else 'unset'}")
    agreement.append(f"HVDTUNE_AUTOTUNE_DRIVER={'set' if settings.autotune_driver else 'unset'}")
    agreement.append(agreed_sets.replace("\n", " "))
    affinity = settings.thread_affinity
    return _native.EngineOptions(
        rank=topology.rank,
        size=topology.size,
        local_size=topology.local_size,
        cancellation=cancellation,
        hostname=_shown_hostname(topology),
        endpoint=_meeting_point(topology),
        secret=settings.secret or "",
        **meeting,
        agreement="\n".join(agreement),
        start_timeout_s=float(settings.start_timeout),
        host_fanout=settings.host_fanout,
        cache_capacity=settings.cache_capacity,
        disable_group_fusion=settings.disable_group_fusion,
        fusion_threshold=settings.fusion_threshold,
        cycle_time_ms=float(settings.cycle_time),
        chunk_size=settings.chunk_size,
        one_shot_limit=settings.one_shot_limit,
        nccl_bypass_limit=settings.nccl_bypass_limit,
        writing=settings.writing,
        reduction_threads=_reduction_threads(settings),
        spin_us=settings.spin_us,
        affinity=affinity[topology.local_rank] if topology.local_rank < len(affinity) else -1,
        process_sets=static,
        **recording.options(topology, settings, _shown_hostname(topology)),
        watch_steps=settings.autotune,
        straggler_share=float(settings.straggler_share),
        stall_enabled=not settings.stall_check_disable,
        stall_warning_s=float(settings.stall_check_time),
        stall_shutdown_s=float(settings.stall_shutdown_time),
        **data_plane.options(topology, settings),
        **devices.options(settings),
    )


def _reduction_threads(settings: knobs.Settings) -> int:
    """In the engine's terms: -1 leaves the number to it."""
    return -1 if settings.reduction_threads == "auto" else int(settings.reduction_threads)


def _network_options(
    topology: Topology, settings: knobs.Settings, where: network.MeetingPlace | None
) -> dict[str, Any]:
    place = where.of_generation(_generations[topology.job_id]) if where else None
    named = network.interface_names(settings.gloo_iface)
    return {
        "network_host": place.host if place else "",
        "network_port": place.port if place else 0,
        "network_secret": place.secret if place else "",
        "interfaces": named or list(place.listens if place else ()),
        "host_salt": settings.host_salt or "",
        "version": recording.version(),
    }


def _meeting_point(topology: Topology) -> str:
    """The name of the socket where the ranks meet: at most 107 bytes."""
    job = f"{os.getuid()}/{topology.job_id}"
    if len(job) > 64 or not job.isascii():
        import hashlib  # only here: it loads OpenSSL, and our launcher's jobs have short names

        job = f"#{hashlib.sha256(job.encode()).hexdigest()}"
    return f"hvdtune/{job}/{_generations[topology.job_id]}"


def _shown_hostname(topology: Topology) -> str:
    """The name for error messages: "localhost" tells a reader nothing."""
    return os.uname().nodename if topology.hostname == "localhost" else topology.hostname


def _register_exit() -> None:
    global _exit_registered
    if not _exit_registered:
        _exit_registered = True
        atexit.register(_finish_mpi)  # runs after shutdown: what is registered last runs first
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_forget_in_child)


def _finish_mpi() -> None:
    """End MPI if it was started for the engine.

    A process that fails leaves MPI silently: its mpirun then ends the others, while MPI_Finalize
    would wait for them.
    """
    if not world.is_ranks_own():
        return
    for stream in (sys.stdout, sys.stderr):  # some mpiruns lose later output
        with contextlib.suppress(Exception):
            stream.flush()
    _native.finish_mpi(
        finalizes=getattr(sys, "last_type", None) is None,
        hydra=mpi.hydra_connection(os.environ),
    )


def _forget_in_child() -> None:
    """A forked child has the engine's memory but not its threads: it is not part of the job.

    It still knows its parent's place there, which a DataLoader's workers ask for.
    """
    global _lock
    _lock = threading.RLock()  # a thread that the child does not have may hold the old one
    membership.renew_lock()
    world.abandon()


def _running_engine() -> _native.Engine | None:
    return world.running.engine  # one read: a signal may come at any moment


def shutdown() -> None:
    """End the job for all its processes; does nothing if it is not running.

    In a fork of a rank only this process forgets the job, which goes on.
    """
    with _lock:
        if not world.is_running():
            if world.is_initialized():
                world.end()
                sets.release()
            return
        for _, before_shutdown in _hooks:
            # A failure of a tuner or recorder must not keep the job from ending.
            try:
                before_shutdown()
            except Exception as error:
                part = getattr(before_shutdown, "__module__", before_shutdown)
                log.write("info", f"shutdown: {part} failed: {type(error).__name__}: {error}")
        topology, settings, engine = world.topology(), world.settings(), world.end()
        assert engine is not None
        sets.release()
        if _place is not None and _place.members is not None:
            _place.members.close()
        engine.shutdown()
        recording.forget_signal(settings)
        # In an elastic job the others wait for this process to join them again.
        recording.finish(engine, topology.rank, waits=not member.comes_back())
        if not member.comes_back():
            recording.finish_generations(settings, topology.rank)
    from hvdtune.core import operations

    operations.forget_all()


def add_lifecycle_hook(after_init: Hook, before_shutdown: Hook) -> None:
    """Call `after_init` after every init and `before_shutdown` before every shutdown."""
    _hooks.append((after_init, before_shutdown))
