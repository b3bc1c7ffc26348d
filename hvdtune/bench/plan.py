"""What the parent asks the ranks to do, as a file both sides understand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Plan:
    """One benchmark run. Sizes in bytes, budgets in seconds of timed iterations per case.

    `iterations` and `warmup` are None when the budget decides. `memory_workers` ranks measure
    the memory with arrays of `memory_sizes`; none when the list is empty.
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
    memory_sizes: tuple[int, ...]
    memory_workers: int

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Plan:
        """Read what `save` wrote."""
        fields: dict[str, Any] = json.loads(path.read_text())
        for key in ("sizes", "workloads", "memory_sizes"):
            fields[key] = tuple(fields[key])
        return Plan(**fields)
