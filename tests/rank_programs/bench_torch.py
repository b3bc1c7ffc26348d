"""The benchmark of `hvdtune bench` with PyTorch tensors, as one rank carries it out."""

from __future__ import annotations

import io
import json
from typing import Any

import hvdtune as hvd
from hvdtune.bench.arrays import TorchArrays
from hvdtune.bench.plan import Plan
from hvdtune.bench.worker import Benchmark


def measured(operation: str, dtype: str, spoil: bool) -> list[dict[str, Any]]:
    """What rank 0 reports; `spoil` has every result changed before it is compared."""
    hvd.init()
    arrays = TorchArrays("cpu")
    if spoil:
        compare = arrays.count_wrong

        def spoiled(array: Any, tile: Any, offset: int = 0) -> int:
            array[0] += 1
            return compare(array, tile, offset)

        arrays.count_wrong = spoiled  # type: ignore[method-assign]
    plan = Plan(
        operation=operation,
        dtype=dtype,
        sizes=(48, 98304),
        workloads=("tiny",) if operation == "allreduce" else (),
        iterations=2,
        warmup=0,
        check=True,
        sweep_budget=0.1,
        workload_budget=0.1,
        seconds=5.0,
        memory_sizes=(),
        memory_workers=0,
        device="cuda",
    )
    results = io.StringIO()
    Benchmark(hvd, plan, results if hvd.rank() == 0 else None, arrays).run()
    hvd.shutdown()
    return [json.loads(line) for line in results.getvalue().splitlines()]
