"""Slurm: the hosts of the allocation we are in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hvdtune.core.topology import slurm_step, slurm_tasks_per_node
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.errors import LaunchError

_MOST_HOSTS = 100_000


def allocation(environ: Mapping[str, str]) -> list[Host] | None:
    """The nodes of this Slurm allocation with their tasks as slots, or None outside of one.

    Raises `LaunchError` if Slurm's variables cannot be understood, or if this is one of several
    tasks of an srun step: each would start the whole job.
    """
    text = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not environ.get("SLURM_JOB_ID") or not text:
        return None
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if slurm_step(environ) and tasks != "1":
        raise LaunchError(
            f"this is one of the {tasks} tasks of an srun step, each of which would start the "
            "whole job: run `srun python train.py` without hvdtune run, or hvdtune run once, "
            "outside of srun."
        )
    names = list(expand_nodelist(text))
    per_node = environ.get("SLURM_TASKS_PER_NODE", "")
    slots = slurm_tasks_per_node(per_node) if per_node else [1] * len(names)
    if len(slots) != len(names):
        raise LaunchError(
            f"SLURM_TASKS_PER_NODE={per_node!r} does not fit SLURM_JOB_NODELIST={text!r}, which "
            f"names {len(names)} nodes: give the hosts with -H."
        )
    return [Host(name, count) for name, count in zip(names, slots, strict=True)]


def expand_nodelist(text: str) -> Iterator[str]:
    """The names in Slurm's "gpu[01-03,7]-x,login" in its order: gpu01-x, gpu02-x, ….

    Raises `LaunchError` if the text is not such a list.
    """
    found = 0
    for entry in _split(text):
        for name in _expand(entry, text):
            found += 1
            if found > _MOST_HOSTS:
                raise LaunchError(f"the list of nodes {text!r} names more than {_MOST_HOSTS}.")
            yield name
    if not found:
        raise LaunchError(f"the list of nodes {text!r} names no node.")


def _split(text: str) -> list[str]:
    """Cut at the commas that are outside of brackets."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*(?:\]|$))+", text)


def _expand(entry: str, whole: str) -> Iterator[str]:
    start, bracket, rest = entry.partition("[")
    if not bracket:
        if not re.fullmatch(r"[\w.-]*", entry):
            raise LaunchError(f"the list of nodes {whole!r} cannot be understood at {entry!r}.")
        yield entry
        return
    ranges, bracket, end = rest.partition("]")
    if not bracket:
        raise LaunchError(f"the list of nodes {whole!r} has a '[' without ']'.")
    for part in ranges.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise LaunchError(f"the list of nodes {whole!r} cannot be understood at {part!r}.")
        first, last = int(match[1]), int(match[2] or match[1])
        for number in range(first, last + 1):
            for tail in _expand(end, whole):
                yield f"{start}{number:0{len(match[1])}d}{tail}"
