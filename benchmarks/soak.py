"""Random collectives for hours, under load, every result compared.

    python benchmarks/soak.py --minutes 60 --np 4

Jobs of about a minute follow each other. Each runs random programs
(tests/support/models/random_programs.py) on one number of ranks, with random settings, from one
thread of a rank or several, while other processes compute on the same CPUs, ranks are stopped for
some milliseconds, sleep, or have unequal priorities. Every result is compared with NumPy's, and its
bits with those of all other ranks. Two jobs in a row run the same programs with different settings
and loads, and their bits are also compared. A job that prints nothing for --patience seconds counts
as hanging, and the stacks of its ranks are printed.

Exits with 0 if there was no difference and no hang. Otherwise each failure is printed with the
command that runs its job again (the same work and settings; the machine decides the timing). Needs
an installed hvdtune and PyTorch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# The tests have the generator and start ranks.
sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests")

from rank_programs import soak  # noqa: E402
from support.jobs.load import Load, burning, pause_one, set_priorities  # noqa: E402
from support.jobs.ranks import Ranks, RanksFailed, start_ranks  # noqa: E402
from support.models.random_programs import SETS  # noqa: E402

PROGRAMS_OF_A_PAIR = 1_000_000  # seeds that are kept for the programs of two jobs
LONGEST_LIST = 10  # failures printed for a job


@dataclass(frozen=True)
class Job:
    """All that a seed determines."""

    seed: int
    np: int
    settings: dict[str, str]
    load: Load
    threads: int
    nap: float

    def describe(self) -> str:
        """One line: settings and load."""
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        load = self.load
        pauses = f"every {load.pause_every:g} s" if load.pause_every else "none"
        return (
            f"np {self.np}, seed {self.seed}: {self.threads} thread(s), {load.burners} burner(s), "
            f"pauses {pauses}, nice {load.nice or 0}, naps {1e3 * self.nap:g} ms, "
            f"{settings or 'standard settings'}"
        )


@dataclass
class Totals:
    """The totals of all jobs so far."""

    jobs: int = 0
    programs: int = 0
    operations: int = 0
    bytes: int = 0
    failures: int = 0
    seconds: float = 0.0

    def describe(self) -> str:
        """One line: work, speed, failures."""
        rate = self.operations / max(self.seconds, 1e-9)
        return (
            f"{self.jobs} jobs, {self.programs} programs, {self.operations} operations "
            f"({rate:.0f}/s) and {self.bytes / 1e6:.0f} MB on all ranks together, "
            f"{self.failures} differences or hangs"
        )


def random_settings(choice: random.Random) -> dict[str, str]:
    """Unusual values for some settings."""
    values = {
        "HOROVOD_FUSION_THRESHOLD": ("0", "4096", "262144", "8388608"),
        "HOROVOD_CYCLE_TIME": ("0", "0.2", "5", "20"),
        "HVDTUNE_CHUNK_SIZE": ("65536", "131072", "524288", "4194304"),
        "HOROVOD_CACHE_CAPACITY": ("0", "1", "3", "8", "64"),
        "HVDTUNE_SPIN_US": ("0", "20", "200"),
        "HVDTUNE_REDUCTION_THREADS": ("1", "2"),
        "HOROVOD_DISABLE_GROUP_FUSION": ("1",),
    }
    return {name: choice.choice(texts) for name, texts in values.items() if choice.random() < 0.5}


def make_job(seed: int, np: int) -> Job:
    """Settings and load of a job."""
    choice = random.Random(f"{seed} {np}")
    load = Load(
        burners=choice.choice((0, 0, 1, 2)),
        pause_every=choice.choice((0.0, 0.02, 0.2, 1.0)),
        longest_pause=choice.choice((0.005, 0.03, 0.3)),
        # At 19, a rank gets a seventieth of a CPU beside another process: such a job only waits.
        nice=tuple(choice.choice((0, 0, 5, 10)) for _ in range(np))
        if choice.random() < 0.4
        else (),
    )
    return Job(
        seed=seed,
        np=np,
        settings=random_settings(choice) if choice.random() < 0.8 else {},
        load=load,
        # Seed by pairs: both jobs of a pair run the same programs.
        threads=random.Random(f"{seed // 2} {np}").choice((1, 1, 2, 3)),
        nap=choice.choice((0.0, 0.002, 0.05)),
    )


class Interruption:
    """Notes that the user wants to stop; `check` then raises KeyboardInterrupt.

    Python would raise it anywhere, even between the start of a rank and the note that it runs.
    """

    def __init__(self) -> None:
        self._wanted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._wanted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: object) -> None:
        self._wanted = True


def watch(ranks: Ranks, job: Job, patience: float, interruption: Interruption) -> None:
    """Pause ranks until they end. Raises RanksFailed if they print nothing for `patience`.

    Priorities change after all ranks have begun: on a busy machine, importing PyTorch can take a
    rank of low priority longer than `patience`.
    """
    choice = random.Random(job.seed)
    count = len(ranks.processes)
    seen, moved, begun = 0, time.monotonic(), False
    while any(process.poll() is None for process in ranks.processes):
        interruption.check()
        if any(process.poll() for process in ranks.processes):  # the others will also end
            break
        if job.load.pause_every:
            time.sleep(choice.expovariate(1 / job.load.pause_every))
            pause_one(ranks, job.load, choice)
        else:
            time.sleep(0.2)
        printed = [len(ranks.stdout(rank)) for rank in range(count)]
        if sum(printed) != seen:
            seen, moved = sum(printed), time.monotonic()
        if all(printed) and not begun:
            set_priorities(ranks, job.load)
            begun = True
        if time.monotonic() - moved > patience:
            ranks.wait(timeout=0.0)


def run_job(
    job: Job, plan: soak.Plan, patience: float, interruption: Interruption
) -> list[soak.Outcome]:
    """Run a job; what each rank returned. Raises RanksFailed, KeyboardInterrupt."""
    fixed = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_START_TIMEOUT": f"{patience:g}"}
    settings = {**fixed, **job.settings}
    with (
        burning(job.load.burners),
        start_ranks(job.np, soak.run, plan, env=settings) as ranks,
    ):
        watch(ranks, job, patience, interruption)
        return list(ranks.wait(timeout=60.0).values)


def differences(
    outcomes: list[soak.Outcome], known: dict[tuple[int, ...], int], before: int | None
) -> list[str]:
    """The faults of a job, given the bits of the job with the same programs.

    Adds this job's bits to `known`; `before` is the other job's seed.
    """
    faults = [f"rank {rank}: {f}" for rank, outcome in enumerate(outcomes) for f in outcome.faults]
    own: dict[tuple[int, ...], int] = {}
    for rank, outcome in enumerate(outcomes):
        for key, bits in outcome.checksums.items():
            where = f"program {key[0]}, operation {key[1]}"
            if own.setdefault(key, bits) != bits:
                faults.append(f"rank {rank}: {where}: its bits differ from a lower rank's")
            elif known.get(key, bits) != bits:
                faults.append(
                    f"rank {rank}: {where}: its bits differ from those in the job of seed {before}"
                )
    known.clear()
    known.update(own)
    return faults


def repeat_command(job: Job, programs: int) -> str:
    """The command that runs a job again."""
    return (
        f"python benchmarks/soak.py --np {job.np} --seed {job.seed} --programs {programs} "
        "--minutes 0"
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="(default: 60)")
    parser.add_argument(
        *("--np",),
        type=int,
        nargs="+",
        choices=sorted(SETS),
        default=sorted(SETS),
        help=f"numbers of ranks, in turn (default: {' '.join(map(str, sorted(SETS)))})",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="of the first job (default: random and even); must be even if several --np are given, "
        "because each pair of jobs with the same programs begins with an even seed",
    )
    parser.add_argument("--job-seconds", type=float, default=60.0, help="(default: 60)")
    parser.add_argument("--programs", type=int, help="run one job only, with this many programs")
    parser.add_argument(
        "--patience", type=float, default=300.0, help="seconds that count as a hang (default: 300)"
    )
    args = parser.parse_args(arguments)
    # The jobs of a pair would have different numbers of ranks, so their sums may differ.
    if args.seed is not None and args.seed % 2 and len(set(args.np)) > 1:
        parser.error(
            f"--seed {args.seed} is odd and --np gives several numbers of ranks "
            f"({' '.join(map(str, args.np))}): use an even seed, or the --np of the job to repeat"
        )
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run jobs until the time is over."""
    args = parse(arguments)
    # One directory for all jobs, made before anything can be interrupted: a killed rank may leave
    # a file there, which disappears with the directory.
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TMPDIR"] = os.environ["HVDTUNE_TEST_DIRECTORY"] = directory
        return run_jobs(args, Interruption())


def run_jobs(args: argparse.Namespace, interruption: Interruption) -> int:
    """Run jobs until the time is over; the exit status."""
    seed = args.seed if args.seed is not None else 2 * random.randrange(100_000)
    print(f"soak: seed {seed}, np {' '.join(map(str, args.np))}", flush=True)
    totals = Totals()
    began = time.monotonic()
    # Both jobs of a pair on the same number of ranks.
    numbers = itertools.cycle(np for np in args.np for _ in range(2))
    known: dict[tuple[int, ...], int] = {}
    try:
        for count, np in enumerate(numbers):
            left = began + 60 * args.minutes - time.monotonic()
            if count > 0 and (left <= 0 or args.programs is not None):
                break
            job = make_job(seed + count, np)
            if job.seed % 2 == 0:
                known.clear()
            interruption.check()
            plan = make_plan(job, min(args.job_seconds, max(left, 0.0)), args.programs)
            one_job(job, plan, args.patience, interruption, known, totals)
            totals.seconds = time.monotonic() - began
    except KeyboardInterrupt:
        print("interrupted")
    totals.seconds = time.monotonic() - began
    print(totals.describe(), flush=True)
    return 1 if totals.failures else 0


def make_plan(job: Job, seconds: float, programs: int | None) -> soak.Plan:
    """The work of a job's ranks: a number of programs, or a duration."""
    first = job.seed // 2 * PROGRAMS_OF_A_PAIR
    return soak.Plan(first, seconds, programs, job.threads, job.nap)


def one_job(
    job: Job,
    plan: soak.Plan,
    patience: float,
    interruption: Interruption,
    known: dict[tuple[int, ...], int],
    totals: Totals,
) -> None:
    """Run a job, print what it did, add it up."""
    print(job.describe(), flush=True)
    began = time.monotonic()
    totals.jobs += 1
    try:
        outcomes = run_job(job, plan, patience, interruption)
    except RanksFailed as failure:
        totals.failures += 1
        print(f"  FAILED\n{failure}\n  again: {repeat_command(job, 10_000)}", flush=True)
        return
    programs = outcomes[0].programs
    operations = sum(outcome.operations for outcome in outcomes)
    faults = differences(outcomes, known, job.seed ^ 1)
    totals.programs += programs
    totals.operations += operations
    totals.bytes += sum(outcome.bytes for outcome in outcomes)
    totals.failures += len(faults)
    print(
        f"  {programs} programs, {operations} operations "
        f"({operations / (time.monotonic() - began):.0f}/s), {len(faults)} differences",
        flush=True,
    )
    for fault in faults[:LONGEST_LIST]:
        print(f"  {fault}", flush=True)
    if faults:
        print(f"  again: {repeat_command(job, programs)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
