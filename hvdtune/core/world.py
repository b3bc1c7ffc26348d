"""The running job as this process knows it: the engine, the settings, and the ranks.

`job` begins and ends it.
"""

from __future__ import annotations

import collections
import os
import sys
from typing import Any

import hvdtune._native as _native
from hvdtune.core.topology import Topology
from hvdtune.settings import knobs

#: Has the engine, None before init and after shutdown; the native hot calls read it as well.
running = _native.Running()
_abandoned: _native.Engine | None = None  # in a fork of a rank: the rank's, for plain reads
_is_expected = False  # the topology is this process's future place in a job that runs already
_is_fork = False  # this process is a fork of a rank, or of a process that expects to be one
_joined_by = 0  # the process that called init
_topology: Topology | None = None
_settings: knobs.Settings | None = None


def begin(engine: _native.Engine, topology: Topology, settings: knobs.Settings) -> None:
    """The job runs from now on."""
    global _abandoned, _is_expected, _is_fork, _joined_by, _topology, _settings
    _topology, _settings, _joined_by = topology, settings, os.getpid()
    running.engine, _abandoned, _is_expected, _is_fork = engine, None, False, False
    _native.begin_running(engine)


def expect(topology: Topology, settings: knobs.Settings) -> None:
    """A job runs that this process will join: it knows its expected place there."""
    global _is_expected, _joined_by, _topology, _settings
    _topology, _settings, _joined_by = topology, settings, os.getpid()
    _is_expected = True
    _native.end_running(absence("a call"))


def end() -> _native.Engine | None:
    """The job no longer runs; returns the engine that must still be shut down, if any.

    A fork of a rank forgets the rank's engine.
    """
    global _abandoned, _is_expected, _is_fork
    ended, running.engine, _abandoned = running.engine, None, None
    _is_expected = _is_fork = False
    _native.end_running(absence())
    return ended


def abandon() -> None:
    """This process is a fork of a rank: it may ask for its place, and do nothing else."""
    global _abandoned, _is_expected, _is_fork
    if not is_running() and not _is_expected:
        return
    if running.engine is not None:
        running.engine.abandon()
        running.engine, _abandoned = None, running.engine
    _is_expected, _is_fork = False, True
    _native.end_running(absence())


def is_running() -> bool:
    """Whether the job runs and this process is one of its ranks."""
    return running.engine is not None


def is_expected() -> bool:
    """Whether the job runs, and this process joins it when its elastic function begins."""
    return _is_expected


def is_fork() -> bool:
    """Whether this process is a fork of a rank, or of a process that expects to be one."""
    return _is_fork


def is_ranks_own() -> bool:
    """Whether this process called init itself, even if the job is over."""
    return _joined_by == os.getpid()


def is_initialized() -> bool:
    """Whether init was called and shutdown was not, here or in the process that it is a fork of."""
    return is_running() or _is_expected or _is_fork


def engine() -> _native.Engine:
    """The engine. Raises ValueError before init, in a fork, and while the job is expected."""
    found = running.engine
    if found is None:
        raise ValueError(absence())
    return found


def engine_if_joined() -> _native.Engine | None:
    """The engine; None while the job is expected. Raises ValueError before init and in a fork."""
    return None if _is_expected else engine()


def absence(call: str = "") -> str:
    """Why there is no engine. `call`: the call that needs it; if empty, found in the stack."""
    if _is_expected:
        return (
            f"{call or _call_of_program()} before the elastic function: this process has come to a "
            "job that runs already, and the other processes do not call it. Collectives belong "
            "in the function that hvd.elastic.run decorates; rank(), size() and the like answer."
        )
    if not _is_fork or _topology is None:
        return "Horovod has not been initialized; use hvd.init()."
    return (
        f"This process (pid {os.getpid()}) is a fork of rank {_topology.rank} (pid "
        f"{_joined_by}), such as a DataLoader's worker: rank(), size() and the like answer here, "
        "but collectives, and all else that concerns the other ranks, must be called in the "
        "rank's own process."
    )


def _call_of_program() -> str:
    """The function of hvdtune that the program has called."""
    frame, name = sys._getframe(1), "a collective"
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("hvdtune."):
        name, frame = f"{frame.f_code.co_name}()", frame.f_back
    return name


def _readable_engine() -> _native.Engine:
    """The engine, or one of which only constant values may be read."""
    return _abandoned or engine()


def topology() -> Topology:
    """This process's place in the job, perhaps an expected one; a fork has its rank's.

    Raises ValueError before init.
    """
    if not is_initialized():
        raise ValueError(absence())
    assert _topology is not None
    return _topology


def settings() -> knobs.Settings:
    """The settings that the job was started with. Raises ValueError before init."""
    if not is_initialized():
        raise ValueError(absence())
    assert _settings is not None
    return _settings


def status() -> dict[str, Any]:
    """What rank 0 knows of the running job: docs/live.md lists the keys. Empty on other ranks.

    Never waits for an operation. Raises ValueError before init.
    """
    import json

    found: dict[str, Any] = json.loads(engine().status())
    return found


def note(key: str, text: str) -> None:
    """Rank 0: add a line to the status; an empty text removes it. Does nothing before init."""
    found = running.engine
    if found is not None:
        found.note(key, text)


def warn(text: str) -> None:
    """Log a warning of this rank."""
    _native.log("warning", __file__, 0, rank(), text)


def rank() -> int:
    """Number of this process in the job, from 0."""
    return topology().rank


def size() -> int:
    """Processes in the job."""
    return topology().size


def local_rank() -> int:
    """Number of this process among those of its host.

    In an elastic job it is the number of the process's slot, which stays: the slots of lower
    numbers may have no process.
    """
    return topology().local_rank


def local_size() -> int:
    """Processes of the job on this host.

    In an elastic job a slot without a process also counts if one of a higher number has one.
    """
    return topology().local_size


def host_cpus() -> int:
    """CPUs that the job's processes on this host may use together, the same on all of them.

    Affinity masks, and CPU quotas of control groups, are counted. Raises ValueError before init.
    """
    return _readable_engine().host_cpus()


def is_first_of_host() -> bool:
    """Whether no process on this host has a lower rank."""
    hosts = _readable_engine().hosts()
    return hosts.index(hosts[rank()]) == rank()


def cross_rank() -> int:
    """Number of this host among those that have a process of this local rank."""
    return topology().cross_rank


def cross_size() -> int:
    """Hosts that have a process of this local rank."""
    return topology().cross_size


def is_homogeneous() -> bool:
    """Whether every host has equally many processes."""
    counts = collections.Counter(_readable_engine().hosts())
    return len(set(counts.values())) <= 1
