"""A training loop without a framework, long or short, for tests of the autotuner."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune.core import tuning, world
from hvdtune.core.exceptions import HorovodInternalError

SIZES = (1000,) * 20 + (50_000,) * 3
# So many that without fusion a step takes some ten times as long.
MANY = (1000,) * 150
# What a step without fusion takes longer in a program that `computes`.
PLANTED_S = 0.03


def compute() -> None:
    """What stands for computing on a device: a wait, which without fusion is long.

    So without fusion a step is slow whatever else the machine does meanwhile: that settings are
    found to be better is then no matter of luck. And without any wait the optimiser, at the lowest
    priority, would wait long for its share of the CPUs.
    """
    time.sleep(0.001 if tuning.current()["fusion_threshold"] else PLANTED_S)


def train(
    log: str, most_steps: int, pauses: int = 0, sizes: tuple[int, ...] = SIZES
) -> dict[str, Any]:
    """Train until the log at `log` has its last row, at most `most_steps` steps.

    Every rank knows when because rank 0 says so in the step's own traffic. `pauses` shuts the
    engine down and starts it again so many times. Returns the settings in force at the end, the
    steps, and the last gradients' first elements.
    """
    steps = 0
    for _ in range(pauses + 1):
        hvd.init()
        finished = np.zeros(1, np.int32)
        while not finished[0] and steps < most_steps:
            gradients = [np.full(size, hvd.rank() + 1.0, np.float32) for size in sizes]
            finished[0] = hvd.rank() == 0 and steps % 50 == 0 and ",final," in read(log)
            handles = [
                hvd.allreduce_async_(gradient, name=f"gradient.{at}", op=hvd.Sum)
                for at, gradient in enumerate(gradients)
            ]
            handles.append(hvd.allreduce_async_(finished, name="finished", op=hvd.Max))
            for handle in handles:
                hvd.synchronize(handle)
            steps += 1
            compute()
        in_force = tuning.current()
        sums = {float(gradient[0]) for gradient in gradients}
        hvd.shutdown()
    return {"in_force": in_force, "steps": steps, "sums": sums}


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def train_in_a_set(steps: int) -> str:
    """Ranks 0 and 1 allreduce in a set of their own, which the autotuner does not see."""
    both = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[both])
    for _ in range(steps if hvd.rank() < 2 else 0):
        gradient = np.ones(1000, np.float32)
        hvd.allreduce(gradient, name="gradient", op=hvd.Sum, process_set=both)
    hvd.barrier()
    hvd.shutdown()
    return "done"


def train_until_a_rank_dies(log: str) -> str:
    """Train until the first candidate is tried, when rank 1 is killed; returns rank 0's error.

    When the log has the candidate's row, the tuner may already confirm one.
    """
    hvd.init()
    start = tuning.current()
    dies = np.zeros(1, np.int32)
    try:
        while True:
            gradient = np.ones(50_000, np.float32)
            dies[0] = hvd.rank() == 0 and ",baseline," in read(log) and tuning.current() != start
            handles = [
                hvd.allreduce_async_(gradient, name="gradient", op=hvd.Sum),
                hvd.allreduce_async_(dies, name="dies", op=hvd.Max),
            ]
            for handle in handles:
                hvd.synchronize(handle)
            if dies[0] and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.001)
    except HorovodInternalError as error:
        return str(error)


def train_and_change(log: str, values: dict[str, float]) -> dict[str, float]:
    """Rank 0 sets `values` itself while candidates are being tried; what is in force at the end."""
    hvd.init()
    steps, is_changed = 0, False
    while not ended(log, steps):
        if hvd.rank() == 0 and not is_changed and read(log).count(",search,") > 2:
            tuning.apply(values)
            is_changed = True
        handle = hvd.allreduce_async_(np.ones(50_000, np.float32), name="gradient", op=hvd.Sum)
        hvd.synchronize(handle)
        steps += 1
        time.sleep(0.001)
    in_force = tuning.current()
    hvd.shutdown()
    return in_force


def ended(log: str, step: int, finals: int = 1) -> bool:
    """Whether the log has so many last rows, as rank 0 sees it; asked every tenth step."""
    if step % 10:
        return False
    return bool(hvd.broadcast_object(hvd.rank() == 0 and read(log).count(",final,") >= finals))


def train_without_names(log: str, sizes: tuple[int, ...]) -> int:
    """Steps until the log has its last row; no tensor has a name."""
    hvd.init()
    steps = 0
    while not ended(log, steps):
        gradients = [np.full(size, hvd.rank() + 1.0, np.float32) for size in sizes]
        handles = [hvd.allreduce_async_(gradient, op=hvd.Sum) for gradient in gradients]
        for handle in handles:
            hvd.synchronize(handle)
        assert {float(gradient[0]) for gradient in gradients} == {3.0}
        steps += 1
        time.sleep(0.02)  # longer than one is kept from a CPU: equal tensors have only the rhythm
    hvd.shutdown()
    return steps


def train_beside_a_set(log: str) -> dict[str, Any]:
    """Steps of the global set with a sum of ranks 1 and 2 in each, until the log is complete."""
    pair = hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[pair])
    steps, sums = 0, set()
    while not ended(log, steps):
        mine = np.full(500, float(hvd.rank()), np.float32)
        handles = [
            hvd.allreduce_async_(np.ones(1000, np.float32), name=f"gradient.{at}", op=hvd.Sum)
            for at in range(len(MANY))
        ]
        if hvd.rank() in (1, 2):
            hvd.allreduce_(mine, name="of the pair", op=hvd.Sum, process_set=pair)
            sums.add(float(mine[0]))
        for handle in handles:
            sums.add(float(hvd.synchronize(handle)[0]))
        steps += 1
        compute()
    in_force = tuning.current()
    hvd.shutdown()
    return {"in_force": in_force, "sums": sums}


def train_unevenly(log: str, least: int) -> dict[str, Any]:
    """Rank 1 has fewer batches and joins while rank 0 tries settings; then both go on together.

    At least `least` rounds, until the log is complete.
    """
    hvd.init()
    alone, rounds = [], 0
    while not ended(log, 0) or rounds < least:
        for _ in range(40 if hvd.rank() == 0 else 30):
            handles = [
                hvd.allreduce_async_(np.ones(1000, np.float32), name=f"gradient.{at}", op=hvd.Sum)
                for at in range(len(MANY))
            ]
            sums = {float(hvd.synchronize(handle)[0]) for handle in handles}
            assert len(sums) == 1, "a step ran with one rank and with two"
            alone.append(sums == {1.0})
            compute()
        assert hvd.join() == 0
        rounds += 1
    in_force = tuning.current()
    hvd.shutdown()
    return {"in_force": in_force, "alone": sum(alone), "rounds": rounds}


BLOCKING = 100


def what_is_left(log: str) -> dict[str, Any]:
    """Train until tuning has ended if there is any; what this process then has and does.

    `by_coordinator`: of BLOCKING small blocking allreduces, those that went by way of the
    coordinator, on rank 0: at most while tuning, and at least in one of many tries behind it.
    Threads and files: the least of these tries, as what begins a job may still come to its end.
    """
    hvd.init()
    is_tuned = "HOROVOD_AUTOTUNE" in os.environ
    most = by_coordinator() if is_tuned else 0
    steps = 0
    while is_tuned and not ended(log, steps):
        hvd.allreduce(np.ones(50_000, np.float32), name="gradient", op=hvd.Sum)
        steps += 1
        time.sleep(0.001)
    until = time.monotonic() + 30
    while any("autotune" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < until, "the tuner's thread has not ended"
        time.sleep(0.01)
    process = Path("/proc/self")
    tries = []
    for _ in range(20):
        time.sleep(0.05)
        threads, files = len(os.listdir(process / "task")), len(os.listdir(process / "fd"))
        tries.append((by_coordinator(), threads, files))
    least, threads, files = (min(values) for values in zip(*tries, strict=True))
    left = {
        "threads": threads,
        "open files": files,
        "children": (process / "task" / str(os.getpid()) / "children").read_text().split(),
        "by_coordinator": (most, least),
    }
    hvd.shutdown()
    return left


def by_coordinator() -> int:
    """How many of BLOCKING small allreduces did; as rank 0 sees it, 0 on others."""
    small = np.ones(4, np.float32)
    for _ in range(2):  # the first time a name has no slot yet
        hvd.allreduce_(small, name="small", op=hvd.Max)
    hvd.barrier()
    before = world.status()["batches"] if hvd.rank() == 0 else 0
    for _ in range(BLOCKING):
        hvd.allreduce_(small, name="small", op=hvd.Max)
    after = world.status()["batches"] if hvd.rank() == 0 else 0
    hvd.barrier()
    return int(after - before)
