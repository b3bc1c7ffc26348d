"""Decides whether gradients are reduced while the backward pass goes on."""

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

_trial: OverlapTrial | None = None  # this job's, once an optimizer uses it
_joined = False  # all ranks of this job have joined: some may have missed the trial's result


def _begin_job() -> None:
    global _trial, _joined
    _trial, _joined = None, False
    marks.forget_decision()
    tuning.hold(False)


def _note_join() -> None:
    global _joined
    _joined = True
    tuning.hold(False)  # no trial continues


job.add_lifecycle_hook(_begin_job, lambda: None)
operations.add_join_hook(_note_join)


def wanted() -> bool:
    """Whether this rank wants to overlap: the setting says so or, if it is ``auto``, it pays.

    It pays if the host has a CPU left while all ranks of the job compute. If it has none, the
    engine takes its time from the backward pass, and switching between the two costs even more.
    But ranks may still leave CPUs idle; then a trial finds out whether it pays. Ranks may have
    different answers if their numbers of threads or their settings differ.
    """
    choice = world.settings().overlap
    if choice == "auto":
        found_out = _trial is not None and _trial.decided and _trial.overlaps
        threads = world.local_size() * torch.get_num_threads()
        return found_out or threads < world.host_cpus()
    return bool(choice == "on")


def wanted_on_gpu() -> bool:
    """The same for gradients on a GPU: yes, unless the setting forbids it.

    Reducing them takes almost nothing from the backward pass.
    """
    return bool(world.settings().overlap != "off")


def may_be_tried(process_set: ProcessSet) -> bool:
    """Whether this rank agrees to a trial if overlapping does not seem to pay.

    A trial can only time optimizers that step in the same order on all ranks: those of the main
    thread that reduce over all ranks. The autotuner waits for the result. Under `hvdtune tune`
    there is no trial, because the settings that it finds in one program are for other jobs.
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
    """This job's trial. Call it only if the ranks have agreed to make one."""
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
