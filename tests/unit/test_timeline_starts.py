"""What takes long once is told as a start, and blamed on nobody: in Horovod's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvdtune.timeline import api as report

RANKS = 4
Events = list[dict[str, Any]]


class Timeline:
    """Writes what Horovod would have written."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.rows: dict[str, int] = {}
        self.events: Events = [
            {
                "name": "process_name", "ph": "M", "pid": 0,
                "args": {"start_time_since_epoch_in_micros": 1},
            }
        ]  # fmt: skip

    def add(
        self,
        late: dict[int, int],
        wait: int = 100,
        inner: tuple[tuple[str, int], ...] = (("NCCL_ALLREDUCE", 5_000),),
        tensor: str = "grads_0",
        shape: str = "[1000]",
        ticks: bool = True,
    ) -> None:
        """An operation: `late` by rank, how long it negotiates, what it then does."""
        if tensor not in self.rows:
            self.rows[tensor] = len(self.rows) + 1
            row: dict[str, Any] = {"name": "process_name", "ph": "M", "pid": self.rows[tensor]}
            self.events.append({**row, "args": {"name": tensor}})
        pid, begin = self.rows[tensor], self.now + 2_000
        found: Events = []
        if ticks:
            found.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": pid})
            for by, rank in sorted((by, rank) for rank, by in late.items()):
                tick: dict[str, Any] = {"ph": "X", "name": str(rank), "ts": begin + by}
                found.append({**tick, "pid": pid, "dur": 0})
            found.append({"ph": "E", "ts": begin + wait, "pid": pid})
        time = begin + wait
        found.append({"ph": "B", "name": "ALLREDUCE", "ts": time, "pid": pid})
        for name, lasts in inner:
            found.append({"ph": "B", "name": name, "ts": time, "pid": pid})
            found.append({"ph": "E", "ts": time + lasts, "pid": pid})
            time += lasts
        end: dict[str, Any] = {"ph": "E", "ts": time, "pid": pid}
        found.append({**end, "args": {"dtype": "float32", "shape": shape}})
        self.events += found
        self.now = time

    def steady(self, count: int, late_rank: int | None = None, by: int = 4_000, **how: Any) -> None:
        """So many operations; the ranks take turns, or one is late in all of them."""
        for turn in range(count):
            late = {(turn + k) % RANKS: 10 + 30 * k for k in range(RANKS)}
            wait = 100
            if late_rank is not None:
                late = dict.fromkeys(range(RANKS), 10) | {late_rank: by}
                wait = by
            self.add(late, wait, **how)

    def report(self, folder: Path) -> dict[str, Any]:
        """The document; text and page must be made of it, too."""
        path = folder / "t.json"
        path.write_text(json.dumps(self.events))
        numbers = report.document([path])
        sentence = numbers["verdict"]["sentence"]
        assert sentence in report.text(numbers)
        assert sentence.split(". ")[0].replace("'", "&#x27;") in report.page(numbers)
        return numbers


def late_by(rank: int, us: int) -> dict[int, int]:
    return {one: 2 + one for one in range(RANKS)} | {rank: us}


INIT = (("INIT_NCCL", 4_300_000), ("NCCL_ALLREDUCE", 5_000))


def test_the_first_operation_and_nccls_initialisation(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(late_by(3, 5_000_000), 5_000_000, INIT)
    timeline.steady(300)
    numbers = timeline.report(tmp_path)
    said = numbers["verdict"]["sentence"]
    assert "one-time start (NCCL initialisation, first operation) took 9.3" in said
    assert "waited 5 s for each other" in said.replace("5.00", "5")
    assert "No rank is late afterwards" in said
    assert "rank 3" not in said
    assert numbers["start"]["waited_s"] == pytest.approx(5, abs=0.01)
    assert numbers["start"]["parts"][0]["reasons"] == ["NCCL initialisation", "first operation"]
    assert {one["operations"] for one in numbers["lateness"]} == {300}


def test_tensors_that_wait_while_nccl_starts(tmp_path: Path) -> None:
    """As in public recordings of 8 and 16 GPUs: with ticks in the first step only, the rank whose
    answers are read last looks late for all that was submitted meanwhile."""
    timeline = Timeline()
    begin = timeline.now
    timeline.add(late_by(7 % RANKS, 500_000), 500_000, INIT, tensor="a")
    end = timeline.now
    for number in range(6):
        timeline.now = begin
        wait = end - begin + 100 + number
        timeline.add(late_by(3, wait - 50), wait, tensor=f"b{number}")
    for _ in range(30):
        for tensor in ("a", *(f"b{number}" for number in range(6))):
            timeline.add({}, 0, tensor=tensor, ticks=False)
    said = timeline.report(tmp_path)["verdict"]["sentence"]
    assert "NCCL initialisation" in said
    assert "holds the others up" not in said
    assert "does not show which ranks are late afterwards" in said


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"shape": "[77]"}, "new shape"),
        ({"tensor": "validation"}, "first operation on a tensor"),
        ({"inner": INIT}, "NCCL initialisation"),
    ],
)
def test_a_start_in_the_middle(how: dict[str, Any], reason: str, tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.steady(100)
    timeline.add(late_by(2, 3_000_000), 3_000_000, **how)
    timeline.steady(100, **({} if "inner" in how else how))
    numbers = timeline.report(tmp_path)
    assert reason in numbers["start"]["parts"][0]["reasons"]
    assert "holds the others up" not in numbers["verdict"]["sentence"]
    assert numbers["duration_s"] > 3
    assert all(one["share"] < 0.05 for one in numbers["lateness"])


def test_a_first_operation_over_gloo(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(late_by(1, 800_000), 800_000, (("GLOO_ALLREDUCE", 5_000),))
    timeline.steady(40, inner=(("GLOO_ALLREDUCE", 5_000),))
    said = timeline.report(tmp_path)["verdict"]["sentence"]
    assert "one-time start (first operation)" in said
    assert "rank 1" not in said


def test_a_single_pause_of_no_known_cause_names_no_rank_as_late(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.steady(100)
    timeline.add(late_by(2, 3_000_000), 3_000_000)
    timeline.steady(100)
    numbers = timeline.report(tmp_path)
    assert numbers["start"] is None
    assert "a single pause" in numbers["verdict"]["sentence"]
    assert "holds the others up" not in numbers["verdict"]["sentence"]


def test_a_rank_that_is_late_in_every_operation_is_named(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.steady(100, late_rank=2)
    numbers = timeline.report(tmp_path)
    assert "rank 2 holds the others up" in numbers["verdict"]["sentence"]
    assert numbers["start"] is None


def test_both_a_start_and_a_late_rank_are_said(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(late_by(3, 5_000_000), 5_000_000, INIT)
    timeline.steady(100, late_rank=2)
    said = timeline.report(tmp_path)["verdict"]["sentence"]
    assert "rank 2 holds the others up. It was the last in 100 of 100" in said
    assert "one-time start (NCCL initialisation" in said
    assert "No rank is late" not in said
