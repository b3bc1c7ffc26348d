"""What a planted program gets on a rank: its identity, random numbers, a clock of its steps."""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Job:
    """One rank of a training job.

    hvd: the face of `framework`. fault: plant the fault. random: different numbers on each rank,
    the same in each run.
    """

    def __init__(self, framework: str, fault: bool) -> None:
        self.hvd: Any = importlib.import_module(
            "hvdtune.torch" if framework == "torch" else "hvdtune"
        )
        self.fault = fault
        self.times: list[float] = []
        self.cpu: list[float] = []  # CPU time of this process in each step, s
        self.rank, self.size = 0, 1
        self.random = random.Random(0)

    def start(self) -> None:
        """Join the other ranks. A program that must set something before that does so first."""
        self.hvd.init()
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        self.random.seed(1000 + self.rank)

    def steps(self, count: int, mark: bool = True) -> Iterator[int]:
        """Numbers of steps, each timed; `mark`s their ends if no optimizer does."""
        for number in range(count):
            begin, cpu = time.monotonic(), time.process_time()
            yield number
            if mark:
                self.hvd.mark_step()
            self.times.append(time.monotonic() - begin)
            self.cpu.append(time.process_time() - cpu)

    def finish(self, result: Path) -> None:
        """Rank 0 writes its step times, and the CPU times of all ranks' steps, in seconds."""
        every = self.hvd.allgather_object(self.cpu)
        if self.rank == 0:
            result.write_text(json.dumps({"steps": self.times, "cpu": every}))
        self.hvd.barrier()  # other ranks may still be waiting for some of the ranks
        self.hvd.shutdown()

    @contextlib.contextmanager
    def other_programs(self, count: int) -> Iterator[None]:
        """Programs on this host that only take CPUs, which rank 0 starts and ends."""
        with contextlib.ExitStack() as stack:
            if self.rank == 0:
                stack.enter_context(busy_loops(count))
            yield


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that compute without end; they also end if the process that started them ends."""
    # A pipe that nobody writes to closes when the parent ends, for whatever reason.
    code = "import os, threading\nthreading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), "
    code += "daemon=True).start()\nwhile True: pass"
    loops = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(count)
    ]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.communicate()


def pause(seconds: float) -> None:
    """Computing, played by sleeping: takes equally long however many ranks share the CPUs."""
    if seconds > 0:
        time.sleep(seconds)


def crunch(times: int) -> None:
    """Real computing: products of 192 × 192 matrices, some 0.3 ms each."""
    import numpy as np

    matrix = np.full((192, 192), 0.5, np.float32)
    for _ in range(times):
        matrix = np.minimum(matrix @ matrix, 0.5)
