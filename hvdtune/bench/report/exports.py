"""The files of `--json` and `--csv`: the numbers of the table, unrounded."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvdtune.bench.report.results import Measurement, Report, to_dict

#: Columns of the CSV; sizes in bytes, times in µs, bandwidths in GB/s, share as a fraction.
CSV_COLUMNS = (
    *("kind", "name", "operation", "size_bytes", "count", "tensors", "dtype", "redop", "root"),
    *("in_place", "iterations", "time_us", "min_us", "p50_us", "p99_us"),
    *("algbw_gbs", "busbw_gbs", "bound_us", "share", "wrong", "steps_per_s"),
)


def write_json(report: Report, path: Path) -> None:
    """Write everything the report holds; times in s, see `results` for the fields."""
    path.write_text(json.dumps(to_dict(report), indent=1) + "\n")


def write_csv(report: Report, path: Path) -> None:
    """Write one line for each measurement; fields that do not apply stay empty."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(csv_rows(report))


def csv_rows(report: Report) -> list[dict[str, Any]]:
    """The lines of the CSV, keyed by column."""
    rows = []
    for row in report.sweep:
        for in_place, case in ((0, row.out_of_place), (1, row.in_place)):
            if case is None:
                continue
            rows.append(
                {
                    "kind": "sweep",
                    "name": row.operation,
                    "operation": row.operation,
                    "size_bytes": row.size_bytes,
                    "count": row.count,
                    "tensors": 1,
                    "dtype": row.dtype,
                    "redop": row.redop,
                    "root": row.root,
                    "in_place": in_place,
                    **_measured(case),
                }
            )
    for work in report.workloads:
        rows.append(
            {
                "kind": "workload",
                "name": work.key,
                "operation": "allreduce",
                "size_bytes": work.size_bytes,
                "count": work.elements,
                "tensors": work.tensors,
                "dtype": work.dtype,
                "redop": "sum",
                "root": -1,
                "in_place": 1,
                **_measured(work.step),
                "steps_per_s": work.steps_per_second(),
            }
        )
    return rows


def _measured(case: Measurement) -> dict[str, Any]:
    time = asdict(case.time)
    values = {
        "iterations": case.time.iterations,
        "time_us": time["mean"] * 1e6,
        "min_us": time["minimum"] * 1e6,
        "p50_us": time["p50"] * 1e6,
        "p99_us": time["p99"] * 1e6,
        "algbw_gbs": case.algbw,
        "busbw_gbs": case.busbw,
        "bound_us": None if case.bound is None else case.bound * 1e6,
        "share": case.share,
        "wrong": case.wrong,
    }
    return {key: "" if value is None else value for key, value in values.items()}
