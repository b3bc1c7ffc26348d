"""Which kind of job this is: decides whether settings found in one run serve another.

work       tensors and bytes that one training step allreduces, as seen in the first steps
topology   ranks, ranks on each host, usable CPUs and the processor's name
backend    the data plane that carries the tensors
versions   hvdtune's
fixed      tunable settings that the user fixed, and their values
engine     settings that are never tuned but affect how the tuned ones act
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from hvdtune.autotune.search.space import Value

DIGITS = 2  # of work that differs between most steps
LEAST_SHARE = 0.5  # of the steps must have the same work, else its rounded median describes it


class CountedStep(Protocol):
    """What the signature needs to know about a step (`core.tuning.StepRecord` has it)."""

    @property
    def bytes(self) -> int:
        """Bytes allreduced in the step."""

    @property
    def tensors(self) -> int:
        """Tensors allreduced in the step."""


class Signature:
    """Collects steps and describes the work of one of them."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, int]] = Counter()

    def add(self, step: CountedStep) -> None:
        """Take the next step."""
        self._seen[step.tensors, step.bytes] += 1

    def work(self) -> dict[str, int] | None:
        """Tensors and bytes of a step; None until a step was seen.

        The most frequent pair; if no pair makes up LEAST_SHARE of the steps, the medians to DIGITS
        digits: such a job is recognised only by its size.
        """
        if not self._seen:
            return None
        total = sum(self._seen.values())
        (tensors, size), count = max(self._seen.items(), key=lambda item: (item[1], item[0]))
        if count < LEAST_SHARE * total:
            tensors = _rounded_median(pair[0] for pair in self._seen.elements())
            size = _rounded_median(pair[1] for pair in self._seen.elements())
        return {"tensors": tensors, "bytes": size}


def describe(
    work: Mapping[str, int],
    *,
    size: int,
    local_size: int,
    cpus: int,
    version: str,
    fixed: Mapping[str, Value],
    engine: Mapping[str, object],
    backend: str = "shared memory",
    processor: str | None = None,
) -> dict[str, Any]:
    """The identity of a job, as plain data for `store.key_of`."""
    return {
        "work": dict(work),
        "topology": {
            "ranks": size,
            "ranks_per_host": local_size,
            "cpus": cpus,
            "processor": processor_name() if processor is None else processor,
        },
        "backend": backend,
        "versions": {"hvdtune": version},
        "fixed": dict(sorted(fixed.items())),
        "engine": dict(sorted(engine.items())),
    }


def processor_name() -> str:
    """The model name from /proc/cpuinfo, else the architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def program_name(argv: Sequence[str]) -> str:
    """The program's name for people: the last part of the script's path."""
    return os.path.basename(argv[0]) if argv and argv[0] else ""


def _rounded_median(numbers: Iterable[int]) -> int:
    ordered = sorted(numbers)
    return int(float(f"{ordered[len(ordered) // 2]:.{DIGITS}g}"))
