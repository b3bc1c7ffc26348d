"""All planted programs, and how a rank trains one of them."""

from __future__ import annotations

from pathlib import Path

from planted import cpus, healthy, operations, phases, ranks, settings, trends
from planted.job import Job
from planted.program import Program

FAULTY: list[Program] = [
    program
    for module in (ranks, phases, cpus, operations, settings, trends)
    for program in module.programs.all
]
HEALTHY: list[Program] = healthy.programs.all


def train(name: str, fault: bool, result: Path) -> None:
    """One rank of a job; rank 0 writes its step times."""
    program = next(one for one in FAULTY + HEALTHY if one.name == name)
    job = Job(program.framework, fault)
    program.train(job)
    job.finish(result)
