"""The parent's orders to the ranks, as a file that both sides understand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdtune.bench.collectives import COLLECTIVES


@dataclass(frozen=True)
class Plan:
    """One benchmark run. Sizes in bytes, budgets in seconds of timed iterations per case.

    `iterations` and `warmup` are None when the budgets decide; the whole run should then take
    about `seconds`, or one and a half times the budgets if that is more. `memory_workers` ranks
    measure the memory with arrays of `memory_sizes`; none when the list is empty. `device` is where
    the arrays are: cpu, or cuda.
    """

    operation: str
    dtype: str
    sizes: tuple[int, ...]
    workloads: tuple[str, ...]
    iterations: int | None
    warmup: int | None
    check: bool
    sweep_budget: float
    workload_budget: float
    seconds: float
    memory_sizes: tuple[int, ...]
    memory_workers: int
    device: str = "cpu"

    def forms(self) -> int:
        """The number of ways to measure each size: out of place, and in place if possible."""
        return 1 + COLLECTIVES[self.operation].has_in_place

    def cases(self) -> int:
        """How many results the run will have."""
        return self.forms() * len(self.sizes) + len(self.workloads)

    def budgets(self) -> float:
        """The budgets of all cases together, in seconds."""
        sweep = self.forms() * len(self.sizes) * self.sweep_budget
        return sweep + len(self.workloads) * self.workload_budget

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Plan:
        """Read a plan written by `save`."""
        fields: dict[str, Any] = json.loads(path.read_text())
        for key in ("sizes", "workloads", "memory_sizes"):
            fields[key] = tuple(fields[key])
        return Plan(**fields)
