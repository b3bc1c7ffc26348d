"""Rank programs that are recorded in hvdtune's own way; each returns what it has submitted."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.jobs.ranks import hvdtune_command

import hvdtune as hvd

NAMES = ("layer0", "layer1", 'a "quoted" \\ name', "line\nbreak, \x01 and é, 梯度")


def one_step(scale: int = 1) -> None:
    handles = [
        hvd.allreduce_async(np.ones(scale * (3 + i), np.float32), name=name)
        for i, name in enumerate(NAMES)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.mark_step()


def train(steps: int) -> tuple[int, int]:
    """Returns CLOCK_MONOTONIC before the first submission and after the last result, in ns."""
    hvd.init()
    hvd.barrier()
    begin = time.monotonic_ns()
    for _ in range(steps):
        one_step()
    end = time.monotonic_ns()
    hvd.shutdown()
    return begin, end


def patiently(steps: int) -> tuple[int, int]:
    """As train(), but looks for results now and then, and the last rank is always late."""
    hvd.init()
    hvd.barrier()
    begin = time.monotonic_ns()
    for _ in range(steps):
        for name in NAMES:
            time.sleep(0.005 * (hvd.rank() + 1 == hvd.size()))
            handle = hvd.allreduce_async(np.ones(3, np.float32), name=name)
            while not hvd.poll(handle):
                time.sleep(0.001)
            hvd.synchronize(handle)
        hvd.mark_step()
    end = time.monotonic_ns()
    hvd.shutdown()
    return begin, end


def at_once(late: int, seconds: float) -> None:
    """A mark and a barrier right behind init; `late` comes to it so much later."""
    hvd.init()
    hvd.mark("at once")
    if hvd.rank() == late:
        time.sleep(seconds)
    hvd.barrier()
    hvd.shutdown()


def late_rank(steps: int, late: int, seconds: float) -> None:
    """`late` submits each step's tensor so much later."""
    hvd.init()
    for _ in range(steps):
        hvd.barrier()
        if hvd.rank() == late:
            time.sleep(seconds)
        hvd.allreduce(np.ones(100_000, np.float32), name="x")
        hvd.mark_step()
    hvd.shutdown()


def busy_or_asleep(steps: int, seconds: float) -> None:
    """Rank 0 computes so long in every step, the others sleep."""
    hvd.init()
    for _ in range(steps):
        end = time.monotonic() + seconds
        while hvd.rank() == 0 and time.monotonic() < end:
            pass
        time.sleep(max(0.0, end - time.monotonic()))
        hvd.allreduce(np.ones(100, np.float32), name="x")
        hvd.mark_step()
    hvd.shutdown()


def on_one_cpu(steps: int) -> tuple[int, int]:
    """All ranks on the same CPU, and hardly anything to do but to reduce. Returns for how long, ns,
    this thread was ready to run without that CPU between its first step's end and its last's, and
    for how much of that it was blocked; 0 where the kernel does not count it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    hvd.init()
    tensor = np.ones(2 << 20, np.float32)

    def waited() -> int:
        counts = Path("/proc/thread-self/schedstat")
        return int(counts.read_text().split()[1]) if counts.exists() else 0

    def one_step() -> tuple[int, int]:
        handle = hvd.allreduce_async(tensor, name="x", op=hvd.Max)
        before = waited()
        hvd.synchronize(handle)
        blocked = waited() - before
        hvd.mark_step()
        return waited(), blocked

    after, blocked = zip(*(one_step() for _ in range(steps)), strict=True)
    hvd.shutdown()
    return after[-1] - after[0], sum(blocked[1:])


def all_operations() -> None:
    """Each kind once, one of them in a process set without rank 0."""
    others = hvd.ProcessSet(range(1, int(os.environ["HOROVOD_SIZE"])))
    hvd.init(process_sets=[others])
    ones = np.ones((6, 2), np.float64)
    hvd.allreduce(ones, name="r")
    hvd.grouped_allreduce([ones, ones[:2].astype(np.float32)], name="many")
    hvd.allgather(np.ones((hvd.rank() + 1, 2), np.int64), name="g")
    hvd.broadcast(ones, 0, name="b")
    hvd.alltoall(np.ones((6 * hvd.size(), 1)), name="a")
    hvd.reducescatter(ones, name="s")
    if hvd.rank() > 0:
        hvd.allreduce(ones, name="apart", process_set=others)
    hvd.barrier()
    hvd.allreduce(ones)
    hvd.shutdown()


def uneven(steps: int) -> None:
    """Rank 0 takes `steps` steps, the others half of them, and then join."""
    hvd.init()
    for _ in range(steps if hvd.rank() == 0 else steps // 2):
        hvd.allreduce(np.ones(4), name="x")
    hvd.join()
    hvd.shutdown()


def disagree() -> None:
    hvd.init()
    for rows in (4, 4 + hvd.rank(), 4):
        try:
            hvd.allreduce(np.ones(rows), name="x")
        except hvd.HorovodInternalError:
            continue
    hvd.shutdown()


def marks() -> None:
    hvd.init()
    hvd.barrier()
    hvd.mark('here, "there"\nand é', 7)
    hvd.barrier()
    hvd.shutdown()


def change_settings() -> None:
    """A step with the standard settings, and one without fusion."""
    from hvdtune.core import tuning

    hvd.init()
    one_step()
    hvd.barrier()
    if hvd.rank() == 0:
        tuning.apply({"fusion_threshold": 0})
    changed = np.zeros(1, np.int32)
    while not changed[0]:
        changed[0] = tuning.current()["fusion_threshold"] == 0
        hvd.allreduce_(changed, op=hvd.Min, name="changed")
    one_step()
    hvd.shutdown()


def start_and_stop(directory: str, caller: int) -> list[list[str]]:
    """Recorded: 3 steps in first.json, 5 in second.json. Called by `caller`, or by all (-1).

    Returns the files that are there after the first stop and at the end.
    """
    calls = caller in (-1, int(os.environ["HOROVOD_RANK"]))
    hvd.init()
    one_step()
    hvd.barrier()
    if calls:
        hvd.start_timeline(f"{directory}/first.json")
    hvd.barrier()
    for _ in range(3):
        one_step()
    hvd.barrier()
    if calls:
        hvd.stop_timeline()
        hvd.stop_timeline()
    hvd.barrier()
    there = sorted(os.listdir(directory))
    one_step()
    hvd.barrier()
    if calls:
        hvd.start_timeline("/dev/null/t.json")
        hvd.start_timeline(f"{directory}/second.json")
    hvd.barrier()
    for _ in range(5):
        one_step()
    hvd.shutdown()
    return [there, sorted(os.listdir(directory))]


def two_recordings(directory: str, late: int = 1, seconds: float = 0.04) -> None:
    """x and y in first.json, y and x in second.json, three times each; `late` comes later."""
    hvd.init()
    for name, order in (("first", "xy"), ("second", "yx")):
        hvd.barrier()
        if hvd.rank() == 0:
            hvd.start_timeline(f"{directory}/{name}.json")
        hvd.barrier()
        for tensor in order * 3:
            if hvd.rank() == late:
                time.sleep(seconds)
            hvd.allreduce(np.ones(100_000, np.float32), name=tensor)
        hvd.barrier()
        if hvd.rank() == 0:
            hvd.stop_timeline()
    hvd.shutdown()


def a_few_steps_later(directory: str) -> None:
    """start_timeline(steps=3) in the fourth step: the sixth to the eighth."""
    hvd.init()
    for step in range(12):
        if step == 3 and hvd.rank() == hvd.size() - 1:
            hvd.start_timeline(f"{directory}/t.json", steps=3)
        one_step()
    hvd.shutdown()


def by_signal(directory: str, rank: int) -> None:
    """`rank` (-1: all) gets the signal twice; meanwhile there are steps."""
    import signal

    hvd.init()
    os.chdir(directory)
    stop = np.zeros(1, np.int32)
    for wanted in (True, False):
        hvd.barrier()
        if rank in (-1, hvd.rank()):
            os.kill(os.getpid(), signal.SIGUSR2)
        stop[0] = 0
        while not stop[0]:
            one_step()
            from hvdtune.core import world

            stop[0] = world.engine().is_recorded() == wanted
            hvd.allreduce_(stop, op=hvd.Min, name="stop")
    hvd.shutdown()


def train_until_killed(forks: bool = False) -> None:
    """With `forks`, rank 0 has a child that outlives it; it says which."""
    hvd.init()
    for step in range(1_000_000):
        one_step()
        if step == 20:
            if forks and hvd.rank() == 0:
                child = os.fork()
                if child == 0:
                    os.setsid()
                    time.sleep(600)
                    os._exit(0)
                print(f"forked {child}", flush=True)
            print("running", flush=True)


def train_on_a_full_disk(limit: int) -> int:
    """Files of this process may not grow over `limit` bytes. Returns the number of steps.

    100 of them come after the first rank has stopped recording.
    """
    from hvdtune.core import world

    hvd.init()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    one_step()
    while not world.engine().is_recorded():  # rank 0 says when it begins
        time.sleep(0.001)
    steps = 0
    ended = np.zeros(1, np.int32)
    while not ended[0]:
        one_step()
        steps += 1
        ended[0] = not world.engine().is_recorded()
        hvd.allreduce_(ended, op=hvd.Max, name="ended")
    for _ in range(100):
        one_step()
    hvd.shutdown()
    return steps + 100


def flood(rounds: int, groups: int, tensors: int) -> int:
    """`groups` groups of `tensors`, which nobody is blocked for: they make one batch.

    Returns how many tensors were submitted.
    """
    hvd.init()
    grads = [np.ones(1, np.float32) for _ in range(tensors)]
    for _ in range(rounds):
        handles = [
            hvd.grouped_allreduce_async(grads, name=f"group{number}") for number in range(groups)
        ]
        while not all(hvd.poll(handle) for handle in handles):
            time.sleep(0.01)
        for handle in handles:
            hvd.synchronize(handle)
    hvd.shutdown()
    return rounds * groups * tensors


def fork_while_recorded(directory: str) -> int:
    """A child that uses nothing and one that ends as Python programs do. Returns their statuses."""
    hvd.init()
    one_step()
    statuses = 0
    for orderly in (False, True):
        pid = os.fork()
        if pid == 0:
            if not orderly:
                os._exit(0)
            try:
                hvd.mark("not initialized here")
            except ValueError:
                raise SystemExit(0) from None
            os._exit(3)
        statuses += os.waitpid(pid, 0)[1]
    Path(directory, f"forked.{hvd.rank()}").touch()
    for _ in range(3):
        one_step()
    hvd.shutdown()
    return statuses


def optimizer_steps(steps: int) -> list[Any]:
    """Two optimizers by turns: only the first one's steps count."""
    import torch

    import hvdtune.torch as hvt

    hvt.init()
    optimizers = []
    for name in ("first", "second"):
        model = torch.nn.Linear(3, 2)
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        named = [(f"{name}.{key}", value) for key, value in model.named_parameters()]
        optimizers.append((model, hvt.DistributedOptimizer(sgd, named)))
    for _ in range(steps):
        for model, optimizer in optimizers:
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    hvt.shutdown()
    return []


def beside_gpus(directory: str, readings: int) -> int:
    """Two recordings, first.json and second.json, with `readings` of the GPUs each at least.

    `directory` has a pynvml. Rank 0 goes on until NVML is closed again. Returns how often it was.
    """
    sys.path.insert(0, directory)
    import pynvml

    hvd.init()
    done = np.zeros(1, np.int32)

    def steps_until(reached: Callable[[], bool]) -> None:
        done[0] = 0
        while not done[0]:
            one_step()
            time.sleep(0.01)
            done[0] = hvd.rank() > 0 or reached()
            hvd.allreduce_(done, op=hvd.Min, name="done")

    for times, name in enumerate(("first", "second"), start=1):
        hvd.start_timeline(f"{directory}/{name}.json")
        before = pynvml.readings
        steps_until(lambda before=before: pynvml.readings >= before + readings)
        hvd.stop_timeline()
        steps_until(lambda times=times: pynvml.closed == times)
    hvd.shutdown()
    return int(pynvml.closed)


def train_in(folder: str) -> None:
    """Train in a working directory, given as the hexadecimal digits of its bytes."""
    os.chdir(bytes.fromhex(folder))
    train(3)


def same_file_again(path: str) -> None:
    """Two recordings to one file, of 2 and of 3 steps."""
    hvd.init()
    for steps in (2, 3):
        hvd.barrier()
        if hvd.rank() == 0:
            hvd.start_timeline(path)
        hvd.barrier()
        for _ in range(steps):
            one_step()
        hvd.barrier()
        if hvd.rank() == 0:
            hvd.stop_timeline()
        hvd.barrier()
    hvd.shutdown()


def too_late(path: str) -> None:
    """Record steps that the job does not make."""
    hvd.init()
    one_step()
    hvd.barrier()
    hvd.start_timeline(path, steps=3)
    hvd.shutdown()


def asked_from(folder: str) -> int:
    """Record what `hvdtune timeline start`, run in a folder given in digits, asks for."""
    hvd.init()
    started = subprocess.run(
        hvdtune_command("timeline", "start", "t.json", "--job", str(os.getpid())),
        cwd=bytes.fromhex(folder),
        check=False,
    )
    one_step()
    hvd.shutdown()
    return started.returncode
