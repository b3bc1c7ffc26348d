"""The CPUs of each rank and host, as a report's numbers and as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hvdtune.timeline import schema, words
from hvdtune.timeline.record import host_counters
from hvdtune.timeline.report.tables import Table

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.answers import Analysis


def numbers(analysis: Analysis) -> list[schema.RankCpus]:
    """One row per rank: means over the steps, None if not recorded. Empty if no rank has any."""
    steps = analysis.found_steps
    if not len(steps):
        return []
    begin = min(int(own.min()) for own in steps.begin.values())
    end = max(int(own.max()) for own in steps.end.values())
    found = host_counters.threads(analysis.recording, begin, end)
    rows: list[schema.RankCpus] = []
    for host in sorted({one.host for one in found.values()}):
        own = [one for one in found.values() if one.host == host]
        complete = len(own) == sum(
            rank.identity.host == host for rank in analysis.recording.ranks.values()
        )
        for one, others in zip(own, host_counters.used_by_others(own), strict=True):
            rows.append(
                {
                    "rank": one.rank,
                    "host": host,
                    "cpus_used": _known(one["run"]),
                    "threads_waiting": _known(one["wait"]),
                    "threads_computing": _known(one["computing"]),
                    "threads_set": _known(one["set"]),
                    "involuntary_switches_per_s": _known(one["involuntary"]),
                    "voluntary_switches_per_s": _known(one["voluntary"]),
                    "pages_from_disk_per_s": _known(one["major"]),
                    "page_faults_per_s": _known(one["minor"]),
                    "swapped_bytes": _known(one["swapped"]),
                    "held_back_share": _known(one["throttled"]),
                    "cpus_busy": _known(one["busy"]),
                    "cpus_stolen": _known(one["stolen"]),
                    "clock_hz": _known(one["clock"]),
                    "cpu_pressure_share": _known(one["cpu_pressure"]),
                    "memory_pressure_share": _known(one["memory_pressure"]),
                    "cpus_of_others": _known(float(others)) if complete else None,
                    "allowed_cpus": host_counters.listed(set(one.allowed)),
                }
            )
    return sorted(rows, key=lambda row: row["rank"])


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(document: schema.Report) -> Table:
    """The table of CPUs in use, and of threads that waited for one."""
    rows = [
        (
            f"rank {row['rank']} on {row['host']}",
            words.digits(row["cpus_used"]),
            words.digits(row["threads_waiting"]),
            words.digits(row["threads_computing"]),
            row["allowed_cpus"] or "-",
            words.digits(row["cpus_busy"]),
            words.digits(row["cpus_of_others"]),
            words.digits(row["cpus_stolen"]),
            words.percent(row["held_back_share"]),
            words.digits(row["involuntary_switches_per_s"]),
            words.digits(row["pages_from_disk_per_s"]),
        )
        for row in document["cpus"]
    ]
    head = ("rank", "CPUs in use", "threads waiting", "computing", "may use", "busy", "by others",
            "stolen", "held back", "switched off /s", "disk pages /s")  # fmt: skip
    return Table("CPUs: the rank's threads, and the CPUs that it may use", head, rows)
