"""Whether gradients are reduced while the backward pass goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from hvdtune.core import job, operations, tuning, world
from hvdtune.core.observation import log, marks
from hvdtune.core.process_sets import ProcessSet, id_of
from hvdtune.core.reduce_ops import Sum
from hvdtune.torch import async_ops
from hvdtune.torch.optimizer.overlap_trial import OverlapTrial, Place

_trial: OverlapTrial | None = None  # of this job, once an optimizer takes part in one
_joined = False  # all ranks have joined in this job: some may have missed what was found out


def _begin_job() -> None:
    global _trial, _joined
    _trial, _joined = None, False
    marks.forget_decision()
    tuning.hold(False)


def _note_join() -> None:
    global _joined
    _joined = True


job.add_lifecycle_hook(_begin_job, lambda: None)
operations.add_join_hook(_note_join)


def wanted() -> bool:
    """Whether this rank is for it: the setting says so or, if it is ``auto``, it pays.

    It pays where the host has a CPU left while all ranks of the job compute. Where it has none,
    whatever the engine does meanwhile is taken from the backward pass, and the changes between the
    two cost more besides: unless they leave CPUs idle all the same, which a trial has found out.
    Ranks with different numbers of threads, or different settings, may have different answers.
    """
    choice = world.settings().overlap
    if choice == "auto":
        found_out = _trial is not None and _trial.decided and _trial.overlaps
        threads = world.local_size() * torch.get_num_threads()
        return found_out or threads < world.host_cpus()
    return bool(choice == "on")


def wanted_on_gpu() -> bool:
    """The same of gradients on a GPU: yes, unless the setting forbids it.

    What reduces them takes next to nothing from the backward pass.
    """
    return bool(world.settings().overlap != "off")


def may_be_tried(process_set: ProcessSet) -> bool:
    """Whether this rank is for finding out by a trial, where it does not seem to pay.

    Only what all ranks do in the same order can be timed together: optimizers of the main thread
    and of all ranks. The autotuner waits until it is known. `hvdtune tune` measures in one program
    what is for others.
    """
    settings = world.settings()
    return (
        settings.overlap == "auto"
        and not settings.autotune_driver
        and not _joined
        and id_of(process_set) == 0
        and threading.current_thread() is threading.main_thread()
    )


def trial() -> OverlapTrial:
    """This job's trial: for ranks that have agreed to make one."""
    global _trial
    if _trial is None:
        place = Place(world.rank(), world.engine().hosts(), world.host_cpus())
        _trial = OverlapTrial(place, _add_up, _tell)
        tuning.hold(True)
    return _trial


def _add_up(numbers: Sequence[int]) -> list[int]:
    table = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    async_ops.synchronize(async_ops.allreduce_async_(table, name="overlap.trial", op=Sum))
    return [int(number) for number in table.tolist()]


def _tell(text: str) -> None:
    assert _trial is not None
    tuning.hold(_trial.under_way)
    if world.rank() == 0:
        marks.record_decision(f"overlap: {text}")
        log.write("info", f"HVDTUNE_OVERLAP=auto: overlapping {text}")
