"""The benchmark of what a finished autotuner costs: what it reads, and what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "autotune"
_path = list(sys.path)
sys.path.insert(0, str(HARNESS))

import idle  # noqa: E402

sys.path[:] = _path


def looked(threads: list[str], switches: int) -> dict[str, object]:
    return {"threads": threads, "open files": 7, "context switches": switches, "CPU ms": 1.25}


def test_the_page_says_by_how_much_steps_differ() -> None:
    found = {
        "counted finished autotuner": [
            {"instructions": value, "system calls": 2.0} for value in (1001.0, 1002.0, 1500.0)
        ],
        "counted no autotuner": [
            {"instructions": value, "system calls": 2.0} for value in (900.0, 1000.0, 1000.0)
        ],
        "looked at finished autotuner": [looked(["python"], 10), looked(["python"], 11)],
        "looked at no autotuner": [looked(["python", "other"], 10)],
    }
    assert idle.difference(found) == pytest.approx(0.002)
    assert idle.scatter(found) == pytest.approx(1500 / 1001 - 1)
    page = idle.page(found)
    assert "With the finished autotuner, a step's instructions change by +0.20 %" in page
    assert "| no autotuner | 900, 1000, 1000 | 1000 | 2.00 |" in page
    assert "| threads | `python` | `python`, `other` |" in page
    assert "| open files | 7 | 7 |" in page
    assert "| context switches | 10; 11 | 10 |" in page


def test_both_jobs_differ_by_the_autotuner_alone(tmp_path: Path) -> None:
    with_it = idle.environment(True, str(tmp_path))
    without = idle.environment(False, str(tmp_path))
    more = {name for name in with_it if with_it[name] != without.get(name)}
    assert more == {*idle.SHORT_TUNING, "HOROVOD_AUTOTUNE_LOG"}
