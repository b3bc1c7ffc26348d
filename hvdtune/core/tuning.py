"""What the autotuner may see and change: steps, and the settings in force."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdtune.core import world
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.libraries import cuda

_BYPASS, _STREAMS = "nccl_bypass_limit", "num_nccl_streams"
_WHOLE = ("fusion_threshold", "chunk_size", "one_shot_limit", _BYPASS)  # bytes
_BETWEEN_HOSTS = ("hierarchical_allreduce", "hierarchical_allgather")
_changing = threading.Lock()
_changes = 0  # requested in this process
_asked: dict[str, tuple[int, float]] = {}  # by `apply`: the number of the change, the value
_is_held = False


class EngineStopped(HorovodInternalError):
    """The engine has ended; there will be no more steps."""


@dataclass(frozen=True)
class StepRecord:
    """One training step, found from rank 0's traffic: it ends when a tensor repeats.

    Only allreduces of the global process set count. Times are nanoseconds of the monotonic clock;
    `epoch` numbers the settings in force when the step ended. `named`: some of the tensors have
    names of their own. If none has, the engine tells tensors apart by their properties, and a
    record may be a part of a training step.
    """

    index: int
    end_ns: int
    duration_ns: int
    bytes: int
    batches: int
    tensors: int
    epoch: int
    named: bool = True


def read_steps(timeout_s: float) -> list[StepRecord]:
    """Steps since the last call; waits until there is one, at most `timeout_s` seconds.

    Raises EngineStopped once the engine has ended.
    """
    if not world.is_initialized():
        raise EngineStopped("the engine has ended")
    engine = world.engine()
    steps = [StepRecord(*values) for values in engine.read_steps(timeout_s)]
    if not steps and engine.steps_closed():
        raise EngineStopped("the engine has ended")
    return steps


def hold(on: bool) -> None:
    """Whether steps must not be judged now, because something else is being tried in them."""
    global _is_held
    _is_held = on


def is_held() -> bool:
    """Whether the steps that `read_steps` returns now say nothing about settings."""
    return _is_held


def stop_watching() -> None:
    """Nobody will read steps any more, so calls may take every short cut again."""
    with contextlib.suppress(ValueError):  # the engine has ended
        world.engine().stop_watching_steps()


def current() -> dict[str, float]:
    """The settings in force on this rank, by knob: sizes in bytes, the cycle time in ms.

    Settings about hosts are included only if they have an effect (see `_hosts_can_go_first`),
    NCCL's streams once a batch has used NCCL, and the limit for bypassing NCCL once it is known
    that a batch can bypass it.
    """
    engine = world.engine()
    now = engine.settings()
    _, fusion_threshold, cycle_time_ms, chunk_size, one_shot_limit, *flags_now, streams, bypass = (
        now
    )
    flags = zip(_BETWEEN_HOSTS, flags_now, strict=True) if _hosts_can_go_first() else ()
    return {
        "fusion_threshold": fusion_threshold,
        "cycle_time": cycle_time_ms,
        "chunk_size": chunk_size,
        "one_shot_limit": one_shot_limit,
        **dict(flags),
        **({_BYPASS: bypass} if engine.can_bypass_nccl() else {}),
        **({_STREAMS: streams} if engine.uses_nccl() else {}),
    }


def _hosts_can_go_first() -> bool:
    """Whether ranks are on several hosts, with more than one on some of them, and the job tunes.

    Without tuning, ranks have only the connections that their initial settings need.
    """
    hosts = world.engine().hosts()
    return world.settings().autotune and 1 < len(set(hosts)) < len(hosts)


def uses_gpus() -> bool:
    """Whether this process uses GPUs, that is, whether it has loaded the CUDA driver."""
    return cuda.driver_is_loaded()


def apply(values: Mapping[str, float]) -> int:
    """Rank 0: change settings for all ranks, at one place in the schedule. Returns the epoch.

    `values` may hold any of the keys of `current`, and the keys about NCCL before `current` has
    them. Other settings keep the values of the latest request, even if it is still being carried
    out.
    """
    with _changing:
        epoch = _apply(values)
        _asked.update({key: (_changes, value) for key, value in values.items()})
        return epoch


def asked_since(change: int) -> dict[str, float]:
    """The newest values that any thread gave to `apply` since `changes` was `change`."""
    with _changing:
        return {key: value for key, (number, value) in _asked.items() if number > change}


def changes() -> int:
    """How many changes this process has requested; see `apply_unless_changed`."""
    return _changes


def apply_unless_changed(values: Mapping[str, float], since: int) -> int | None:
    """`apply`, or None if settings have been changed since `changes` was `since`.

    For callers that must not overwrite others' wishes. May be called from any thread.
    """
    with _changing:
        return _apply(values) if _changes == since else None


def _apply(values: Mapping[str, float]) -> int:
    global _changes

    flags = _BETWEEN_HOSTS if _hosts_can_go_first() else ()
    unknown = set(values) - {*_WHOLE, "cycle_time", _STREAMS, *flags}
    if unknown:
        raise ValueError(f"not tunable while running: {', '.join(sorted(unknown))}")
    wanted: dict[str, Any] = {key: int(values[key]) for key in _WHOLE if key in values}
    wanted |= {key: bool(values[key]) for key in flags if key in values}
    if "cycle_time" in values:
        wanted["cycle_time_ms"] = float(values["cycle_time"])
    if _STREAMS in values:
        wanted["nccl_streams"] = int(values[_STREAMS])
    epoch = world.engine().change_settings(**wanted)
    _changes += 1
    return epoch
