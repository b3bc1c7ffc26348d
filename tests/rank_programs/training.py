"""Rank programs that look like training, for tests that hurt them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import hvdtune as hvd

STEPS_BEFORE_RUNNING = 10


def gradients(phase: str) -> list[np.ndarray]:
    """Small gradients, or ones that keep the engine inside one allreduce for most of the time."""
    if phase == "large":
        return [np.ones(4_000_000, np.float32) for _ in range(4)]
    return [np.ones(count, np.float32) for count in (10, 1000, 50_000, 3, 0, 777)]


def one_step(grads: list[np.ndarray], phase: str) -> None:
    """One step's communication, as a DistributedOptimizer would do it."""
    if phase == "grouped":
        hvd.synchronize(hvd.grouped_allreduce_async_(grads, name="group"))
        hvd.allgather(grads[0], name="gather")
        return
    handles = [hvd.allreduce_async_(g, name=f"grad.{i}") for i, g in enumerate(grads)]
    for handle in handles:
        hvd.synchronize(handle)


def train(phase: str, victim: int, stop_file: str = "") -> dict[str, Any]:
    """Train until a rank dies or ``stop_file`` exists; say how it ended.

    In phase "waiting" the victim stays away from the collective that the others are blocked in.
    """
    hvd.init()
    rank = hvd.rank()
    grads = gradients(phase)
    stop = np.zeros(1, np.int32)
    step = 0
    try:
        while not stop[0]:
            if step == STEPS_BEFORE_RUNNING:
                print("running", os.getpid(), flush=True)
            if phase == "waiting" and rank == victim and step >= STEPS_BEFORE_RUNNING:
                time.sleep(600)
            one_step(grads, phase)
            stop[0] = bool(stop_file) and Path(stop_file).exists()
            hvd.allreduce_(stop, op=hvd.Max, name="stop")
            step += 1
    except hvd.HorovodInternalError as error:
        raised = time.monotonic()
        try:
            hvd.allreduce(np.ones(3), name="later")
            later = "worked"
        except hvd.HorovodInternalError as again:
            later = str(again)
        hvd.shutdown()
        return {"end": "error", "message": str(error), "later": later, "raised": raised}
    hvd.shutdown()
    return {"end": "stopped", "steps": step}


def train_or_fail(phase: str, victim: int) -> None:
    """As ``train``, but the error ends the program as it does in a script that catches nothing."""
    result = train(phase, victim)
    if result["end"] == "error":
        raise hvd.HorovodInternalError(result["message"])


def train_with_worker(phase: str, victim: int) -> dict[str, Any]:
    """As ``train``; the victim has forked a child, as a data loader does, which outlives it."""
    hvd.init()
    if hvd.rank() == victim:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        print("child", child, flush=True)
    return train(phase, victim)


def start(ready_file: str = "") -> str:
    """Only init; the answer is its error."""
    print("starting", flush=True)
    try:
        hvd.init()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if ready_file:
        Path(ready_file).touch()
    hvd.shutdown()
    return "started"


def die_before_init(victim: int) -> str:
    """One rank ends before it reaches init."""
    if int(os.environ["HOROVOD_RANK"]) == victim:
        os._exit(3)
    return start()


def blocked_in_collective(late: int, stop_file: str) -> str:
    """Every rank but ``late`` is blocked; which exception does Ctrl-C raise there?"""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hvd.init()
    hvd.barrier()
    if hvd.rank() == late:
        while not Path(stop_file).exists():
            time.sleep(0.01)
        hvd.shutdown()
        return "late"
    handle = hvd.allreduce_async(np.ones(5), name="never")
    print("blocked", flush=True)
    try:
        hvd.synchronize(handle)
    except KeyboardInterrupt:
        hvd.shutdown()
        return "interrupted"
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)
    return "finished"


def stay_away_from(tensor: str, late: int, stop_file: str) -> str:
    """Rank ``late`` does not submit ``tensor`` until ``stop_file`` exists; the others wait."""
    hvd.init()
    hvd.allreduce(np.ones(5), name="the.last.one")
    if hvd.rank() == late:
        print("staying away", flush=True)
        wait_in_a_function_of_its_own(stop_file)
    try:
        hvd.allreduce(np.ones(5), name=tensor)
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)
    hvd.shutdown()
    return "finished"


def wait_in_a_function_of_its_own(stop_file: str) -> None:
    deadline = time.monotonic() + 60
    while not Path(stop_file).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def exit_at_step(step: int, victim: int) -> dict[str, Any]:
    """The victim leaves the process without a word to the engine or to Python."""
    hvd.init()
    if hvd.rank() == victim:
        for _ in range(step):
            one_step(gradients("small"), "small")
            hvd.allreduce_(np.zeros(1, np.int32), op=hvd.Max, name="stop")
        os._exit(0)
    return train("small", victim)


def pause_once(seconds: float) -> None:
    """The last rank is late by some seconds, once."""
    hvd.init()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(seconds)
    hvd.allreduce(np.ones(5), name="late")
    hvd.shutdown()


def start_as() -> None:
    """As ``start``, but the outcome is printed: several processes may claim the same rank."""
    print("outcome:", start(), flush=True)


def interrupted_in_init() -> str:
    """Wait in init for a rank that never comes, until a Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("waiting", flush=True)
    try:
        hvd.init()
    except KeyboardInterrupt:
        return "interrupted"
    return "initialised"
