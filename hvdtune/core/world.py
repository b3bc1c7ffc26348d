"""The job this process is part of: starting and ending it, and who is who."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence

from hvdtune import _native, knobs
from hvdtune.core import process_sets as sets
from hvdtune.core import stacks
from hvdtune.core.topology import Topology, detect

Hook = Callable[[], None]

_lock = threading.RLock()
_engine: _native.Engine | None = None
_topology: Topology | None = None
_settings: knobs.Settings | None = None
_generation = 0  # successive inits of one job meet under different names
_hooks: list[tuple[Hook, Hook]] = []
_exit_registered = False

# Settings that decide how ranks talk to each other.
_AGREED = (
    "cache_capacity",
    "fusion_threshold",
    "chunk_size",
    "disable_group_fusion",
    "autotune",
)


def init(
    comm: Iterable[int] | None = None,
    process_sets: Sequence[sets.ProcessSet] | str | None = None,
) -> None:
    """Join the job; blocks until all its processes have.

    Rank and size come from the launcher's environment (see `hvdtune.core.topology`); without one
    the job is this process alone. Calling it again while initialised changes nothing.

    Args:
        comm: None, or all ranks of the job.
        process_sets: sets to register; every process passes the same ones.

    Raises ValueError, "Horovod initialization failed: …", when the processes do not come together
    or disagree about the job.
    """
    global _engine, _topology, _settings, _generation
    with _lock:
        if _engine is not None:
            return
        settings = knobs.from_environ()
        topology = detect(os.environ)
        _check_comm(comm, topology.size)
        if isinstance(process_sets, str):
            raise ValueError(
                f'init(process_sets="{process_sets}") is not supported by this version; pass the '
                "sets themselves"
            )
        _check_host(topology)
        ranks = sets.assign(process_sets or [], topology.size)
        _native.configure_logging(settings.log_level, settings.log_hide_time)
        options = _engine_options(topology, settings, ranks)
        _generation += 1
        try:
            _engine = _native.Engine(options)
        except Exception as error:
            sets.release()
            raise ValueError(f"Horovod initialization failed: {error}") from None
        _topology = topology
        _settings = settings
        _engine.set_stack_source(stacks.format_stacks)
        _register_exit()
        _open_timeline(settings)
    for after_init, _ in _hooks:
        after_init()


def _check_comm(comm: Iterable[int] | None, size: int) -> None:
    if comm is None:
        return
    try:
        ranks = list(comm)
    except TypeError:
        raise ValueError(f"init(comm=...) takes a list of ranks, not {comm!r}") from None
    if ranks and sorted(ranks) != list(range(size)):
        raise ValueError(
            f"init(comm={ranks}): this version starts all {size} processes of the job or none; "
            "pass None"
        )


def _check_host(topology: Topology) -> None:
    # Our own launcher starts processes on this machine only, under whatever host names.
    if topology.local_size != topology.size and topology.launcher != "hvdtune":
        raise ValueError(
            f"Horovod initialization failed: the job has {topology.size} processes, "
            f"{topology.local_size} of them on {topology.hostname}; this version connects the "
            "processes of one host"
        )
    if topology.size > _native.MAX_RANKS:
        raise ValueError(
            f"Horovod initialization failed: {topology.size} processes on one host; at most "
            f"{_native.MAX_RANKS} are supported"
        )


def _engine_options(
    topology: Topology, settings: knobs.Settings, ranks: list[list[int]]
) -> _native.EngineOptions:
    job = hashlib.sha256(f"{os.getuid()}/{topology.job_id}".encode()).hexdigest()[:32]
    agreement = [f"{knobs.KNOBS[key].env}={getattr(settings, key)}" for key in _AGREED]
    agreement.append(f"HOROVOD_TIMELINE={'set' if settings.timeline else 'unset'}")
    agreement.append(f"init(process_sets={ranks})")
    affinity = settings.thread_affinity
    return _native.EngineOptions(
        rank=topology.rank,
        size=topology.size,
        local_size=topology.local_size,
        hostname=_shown_hostname(topology),
        endpoint=f"hvdtune/{job}/{_generation}",
        secret=settings.secret or "",
        agreement="\n".join(agreement),
        start_timeout_s=float(settings.start_timeout),
        cache_capacity=settings.cache_capacity,
        disable_group_fusion=settings.disable_group_fusion,
        fusion_threshold=settings.fusion_threshold,
        cycle_time_ms=float(settings.cycle_time),
        chunk_size=settings.chunk_size,
        spin_us=settings.spin_us,
        affinity=affinity[topology.local_rank] if topology.local_rank < len(affinity) else -1,
        process_sets=ranks,
        timeline=_timeline_file(settings),
        timeline_mark_cycles=settings.timeline_mark_cycles,
        stall_enabled=not settings.stall_check_disable,
        stall_warning_s=float(settings.stall_check_time),
        stall_shutdown_s=float(settings.stall_shutdown_time),
    )


def _shown_hostname(topology: Topology) -> str:
    """The name for error messages: "localhost" tells a reader nothing."""
    return socket.gethostname() if topology.hostname == "localhost" else topology.hostname


def _register_exit() -> None:
    global _exit_registered
    if not _exit_registered:
        _exit_registered = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    """A forked child has the engine's memory but not its threads: it is not part of the job."""
    global _engine
    if _engine is not None:
        _engine.abandon()
        _engine = None


def shutdown() -> None:
    """End the job for all its processes; nothing if it is not running."""
    global _engine
    with _lock:
        if _engine is None:
            return
        for _, before_shutdown in _hooks:
            # A tuner or recorder that fails to say goodbye must not keep the job from ending.
            with contextlib.suppress(Exception):
                before_shutdown()
        engine, _engine = _engine, None
        sets.release()
        engine.shutdown()
    from hvdtune.core import operations

    operations.forget_all()


def is_initialized() -> bool:
    """Whether init was called and shutdown was not, on this process."""
    return _engine is not None


def engine() -> _native.Engine:
    """The engine. Raises ValueError before init."""
    if _engine is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _engine


def topology() -> Topology:
    """This process's place in the job. Raises ValueError before init."""
    engine()
    assert _topology is not None
    return _topology


def settings() -> knobs.Settings:
    """The settings that the job was started with. Raises ValueError before init."""
    engine()
    assert _settings is not None
    return _settings


def rank() -> int:
    """Number of this process in the job, from 0."""
    return topology().rank


def size() -> int:
    """Processes in the job."""
    return topology().size


def local_rank() -> int:
    """Number of this process among those of its host."""
    return topology().local_rank


def local_size() -> int:
    """Processes of the job on this host."""
    return topology().local_size


def cross_rank() -> int:
    """Number of this host among those that have a process of this local rank."""
    return topology().cross_rank


def cross_size() -> int:
    """Hosts that have a process of this local rank."""
    return topology().cross_size


def is_homogeneous() -> bool:
    """Whether every host has as many processes: always, on one host."""
    topology()
    return True


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record a Chrome trace from now on, on rank 0; every rank may call it.

    Raises ValueError unless HOROVOD_TIMELINE was set at init (``DYNAMIC`` records nothing yet). A
    file that cannot be written is logged, training goes on.
    """
    running = engine()
    if not settings().timeline:
        raise ValueError(
            "start_timeline needs HOROVOD_TIMELINE at init; set HOROVOD_TIMELINE=DYNAMIC to start "
            "recording later"
        )
    problem = running.start_timeline(os.fspath(file_path), bool(mark_cycles))
    if problem:
        _native.log("error", __file__, 0, rank(), problem)


def stop_timeline() -> None:
    """Stop recording and complete the file; nothing if none is being written."""
    engine().stop_timeline()


def _timeline_file(settings: knobs.Settings) -> str:
    """The file to record from the start, or ""."""
    name = settings.timeline or ""
    return "" if name.upper() == "DYNAMIC" else name


def _open_timeline(settings: knobs.Settings) -> None:
    # The engine has started it; if that failed, this fails too and says why.
    if _timeline_file(settings):
        start_timeline(_timeline_file(settings), settings.timeline_mark_cycles)


def add_lifecycle_hook(after_init: Hook, before_shutdown: Hook) -> None:
    """Call `after_init` behind every init and `before_shutdown` ahead of every shutdown."""
    _hooks.append((after_init, before_shutdown))


# ---- what Horovod was built with; here the data plane is shared memory ----


def mpi_threads_supported() -> bool:
    """Whether MPI allows several threads. Raises ValueError: MPI is not used."""
    engine()
    raise ValueError("MPI is not enabled: this version's data plane is shared memory")


def mpi_enabled() -> bool:
    """Whether MPI is used."""
    return False


def mpi_built() -> bool:
    """Whether MPI support is built in."""
    return False


def gloo_enabled() -> bool:
    """Whether Gloo is used."""
    return False


def gloo_built() -> bool:
    """Whether Gloo support is built in."""
    return False


def nccl_built() -> int:
    """NCCL's version code, or 0 without NCCL support."""
    return 0


def ddl_built() -> bool:
    """Whether IBM DDL support is built in."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL support is built in."""
    return False


def cuda_built() -> bool:
    """Whether CUDA support is built in."""
    return False


def rocm_built() -> bool:
    """Whether ROCm support is built in."""
    return False
