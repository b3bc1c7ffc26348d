"""Programs whose steps change over the run: slower and slower, from a step on, now and then."""

from __future__ import annotations

import random

from planted.job import Job, crunch, pause
from planted.networks import descend, fit, noise, played, start_torch
from planted.program import Programs

programs = Programs()

DRIFT, SINCE, WHILE = "drift", "slower since a step", "slower for a while"
PERIODIC, PAUSES = "periodic work", "pauses of all ranks"


@programs.faulty("one rank slower and slower", DRIFT, ranks=4, culprits=(2,))
def _drift_of_one(job: Job) -> None:
    descend(job, before=lambda step: pause(4e-4 * step * (job.fault and job.rank == 2)))


@programs.faulty("all slower and slower", DRIFT)
def _drift(job: Job) -> None:
    descend(job, before=lambda step: pause(4e-4 * step * job.fault))


@programs.faulty("growing history", DRIFT, framework="torch")
def _history(job: Job) -> None:
    start_torch(job)
    fit(job, played(), noise(), after=lambda step: crunch(step if job.fault else 0))


@programs.faulty(
    "one rank slower since step 45", (SINCE, "transient straggler"), ranks=4, culprits=(1,)
)
def _since_of_one(job: Job) -> None:
    descend(job, before=lambda step: pause(0.02 * (job.fault and job.rank == 1 and step >= 45)))


@programs.faulty("all slower since step 40", SINCE, ranks=4)
def _since(job: Job) -> None:
    descend(job, before=lambda step: pause(0.02 * (job.fault and step >= 40)))


@programs.faulty("all slower in steps 30-55", WHILE)
def _while(job: Job) -> None:
    descend(job, before=lambda step: pause(0.02 * (job.fault and 30 <= step <= 55)))


@programs.faulty("all pause at random", PAUSES, ranks=4)
def _pauses(job: Job) -> None:
    # The same numbers on each rank, like a shared file system that stops for all of them.
    shared = random.Random(3)
    stops = [step > 4 and shared.random() < 0.09 for step in range(100)]
    descend(job, steps=100, before=lambda step: pause(0.12 * (job.fault and stops[step])))


@programs.faulty("work every 10 steps", PERIODIC, ranks=4)
def _periodic(job: Job) -> None:
    descend(job, before=lambda step: pause(0.15 * (job.fault and step % 10 == 5)))


@programs.faulty("all evaluate every 16 steps", PERIODIC, framework="torch")
def _evaluation(job: Job) -> None:
    start_torch(job)

    def evaluate(step: int) -> None:
        crunch(500 if job.fault and step % 16 == 15 else 0)

    fit(job, played(), noise(), steps=100, after=evaluate)
