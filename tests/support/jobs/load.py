"""Makes life hard for running ranks: other work on their CPUs, pauses, unequal priorities."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from support.jobs.ranks import Ranks

# Ends by itself when whoever started it is gone.
BURNER = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True)
class Load:
    """What to do to the ranks of one job."""

    burners: int = 0  # processes that only compute
    pause_every: float = 0.0  # seconds between pauses of ranks, on average; 0: there are none
    longest_pause: float = 0.03  # seconds
    nice: tuple[int, ...] = ()  # added to the ranks' niceness, in turn


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Other processes that compute as long as the block lasts."""
    # In sessions of their own: Ctrl-C is for whoever started them, and ends them that way.
    burners = [
        subprocess.Popen([sys.executable, "-S", "-c", BURNER], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


def set_priorities(ranks: Ranks, load: Load) -> None:
    """Make some ranks slower than others: all threads that they have now."""
    for rank, nice in zip(range(len(ranks.processes)), load.nice, strict=False):
        with suppress(ProcessLookupError, FileNotFoundError):
            for thread in os.listdir(f"/proc/{ranks.pid(rank)}/task"):
                now = os.getpriority(os.PRIO_PROCESS, int(thread))
                os.setpriority(os.PRIO_PROCESS, int(thread), now + nice)


def pause_one(ranks: Ranks, load: Load, choice: random.Random) -> None:
    """Stop a random rank, or two, for a moment. Those that have ended are left alone."""
    running = [rank for rank, process in enumerate(ranks.processes) if process.poll() is None]
    chosen = choice.sample(running, min(len(running), 1 + (choice.random() < 0.2)))
    try:
        for rank in chosen:
            ranks.signal(rank, signal.SIGSTOP)
        time.sleep(load.longest_pause * choice.random() ** 2)
    finally:
        for rank in chosen:
            ranks.signal(rank, signal.SIGCONT)
