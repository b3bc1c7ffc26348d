"""Rank program: random programs for a while, from one thread or several, with naps in between."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from rank_programs.random_program import DTYPES, Runner
from support.models.random_programs import LARGE, SETS, Profile, generate

import hvdtune.torch as hvd

BLOCK = 5  # programs of a thread between two looks at the clock
MOST_FAULTS = 20
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Plan:
    """What all ranks of a job do."""

    first: int  # seed of the first program
    seconds: float  # no program begins later than that
    programs: int | None = None  # exactly so many of them (rounded up), however long it takes
    threads: int = 1
    nap: float = 0.0  # seconds that a rank sleeps or computes now and then, at most


@dataclass
class Outcome:
    """What a rank did and found."""

    programs: int = 0
    operations: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)
    # As random_program.Report's.
    checksums: dict[tuple[int, ...], int] = field(default_factory=dict)


def profile_of(plan: Plan, thread: int) -> Profile:
    """Several threads must not meet in the names and change the membership for each other."""
    large = (*LARGE, (700_001,), (1_200, 1_001))
    name = f"thread {thread}." if plan.threads > 1 else ""
    return Profile(large, 0.06, repeats=25, thread=name)


def napper(longest: float, thread: int) -> Callable[[], None]:
    """Sleeps or computes for a random time, now and then."""
    random = np.random.default_rng([os.getpid(), thread])

    def nap() -> None:
        if longest <= 0 or random.random() > 0.02:
            return
        until = time.monotonic() + longest * random.random() ** 3
        if random.random() < 0.5:
            time.sleep(max(0.0, until - time.monotonic()))
        while time.monotonic() < until:
            pass

    return nap


def run_block(plan: Plan, runners: list[Runner], first: int) -> None:
    """The next programs of every thread; raises what one of them raised, once all have ended."""
    problems: list[BaseException] = []

    def work(thread: int, runner: Runner) -> None:
        try:
            for number in range(BLOCK):
                seed = first + number * plan.threads + thread
                runner.run(generate(seed, hvd.size(), DTYPES, profile_of(plan, thread)))
                print(f"program {seed} done", flush=True)
        except BaseException as problem:
            problems.append(problem)

    threads = [
        threading.Thread(target=work, args=(thread, runner))
        for thread, runner in enumerate(runners[1:], 1)
    ]
    for thread in threads:
        thread.start()
    work(0, runners[0])
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def over(plan: Plan, began: float, done: int) -> bool:
    """Whether the job ends here: on all ranks or on none."""
    if plan.programs is not None:
        return done >= plan.programs
    late = torch.tensor([float(time.monotonic() - began > plan.seconds)])
    return bool(hvd.allreduce(late, op=hvd.Max, name="soak.over").item())


def run(plan: Plan) -> Outcome:
    """Run programs until the plan is fulfilled. Prints a line for each of them."""
    # Whoever started this may be killed, with this rank stopped in the middle of something.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    warnings.simplefilter("ignore", DeprecationWarning)
    sets = [hvd.ProcessSet(ranks) for ranks in SETS[int(os.environ["HOROVOD_SIZE"])][1:]]
    hvd.init(process_sets=sets)
    runners = [
        Runner([hvd.global_process_set, *sets], napper(plan.nap, thread))
        for thread in range(plan.threads)
    ]
    began = time.monotonic()
    done = 0
    while done == 0 or not over(plan, began, done):
        print(f"programs from {plan.first + done}", flush=True)
        run_block(plan, runners, plan.first + done)
        done += BLOCK * plan.threads
    hvd.barrier()
    hvd.shutdown()
    outcome = Outcome(done)
    for runner in runners:
        outcome.operations += runner.report.operations
        outcome.bytes += runner.report.bytes
        outcome.faults += runner.report.faults[:MOST_FAULTS]
        outcome.checksums |= runner.report.checksums
    return outcome
