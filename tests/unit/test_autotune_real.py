"""The benchmark of real training: what it compares, what it chooses, what it says of the goals."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "autotune"
# The benchmarks have a module `ranks`, and so have the tests.
_path, _ranks = list(sys.path), sys.modules.pop("ranks", None)
sys.path.insert(0, str(HARNESS))

import real  # noqa: E402

sys.path[:] = _path
del sys.modules["ranks"]
if _ranks is not None:
    sys.modules["ranks"] = _ranks

MIB = 2**20
BETTER = {**real.DEFAULTS, "cycle_time": 7.0}


def found(tuned_ms: float = 9.0, rounds: int = 20) -> dict[str, Any]:
    """A comparison in which all starts ended with BETTER and grid point 4 is the fastest."""
    tried = real.all_settings(dict.fromkeys(real.STARTS, BETTER))
    names = list(dict.fromkeys(real.as_measured(tried).values()))
    made: list[dict[str, float]] = []
    for number in range(rounds):
        wobble = 1.001 if number % 4 < 2 else 0.999
        made.append(dict.fromkeys(names, 10.0) | {"grid 4": 9.0, "grid 5": 9.1})
        made[-1] |= {"start: both": 100.0, "tuned: the defaults": tuned_ms * wobble}
        if number + 1 == real.CHOOSING:
            names = real.going_on(names, made)
    return {"tried": tried, "rounds": made}


def stored(tuned_ms: float) -> dict[str, Any]:
    run = {"steps": 800, "finished": True, "values": BETTER}
    pieces = {f"tiny np2 tune {name}": run for name in real.STARTS}
    return {**pieces, "tiny np2 compare": found(tuned_ms)}


def rows(tuned_ms: float) -> list[list[str]]:
    lines = real.report(stored(tuned_ms)).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| 2 |" in line]
    return [row for row in cells if row[1] != "not measured"]


def test_equal_settings_are_measured_once() -> None:
    tried = real.all_settings(dict.fromkeys(real.STARTS, BETTER))
    measured = real.as_measured(tried)
    assert {measured[f"tuned: {name}"] for name in real.STARTS} == {"tuned: the defaults"}
    assert "start: the defaults" in {measured[f"grid {at}"] for at in range(len(real.GRID))}
    assert len({tuple(tried[name].values()) for name in tried}) == len(set(measured.values()))


def test_only_the_best_grid_points_go_on() -> None:
    last = found()["rounds"][-1]
    assert len([name for name in last if name.startswith("grid")]) == real.BEST
    assert {"grid 4", "grid 5", "tuned: the defaults", "start: both"} <= set(last)


def test_the_rounds_that_judge_do_not_choose() -> None:
    one = found()
    for number, values in enumerate(one["rounds"][real.CHOOSING :]):
        if number % 2:  # by these "grid 5" is the best one
            values["grid 5"] = 5.0
    assert real.best_point(one) == "grid 4"


@pytest.mark.parametrize(
    ("tuned_ms", "bad_start", "default"),
    [(9.1, "shown", "shown"), (9.9, "missed", "shown"), (10.1, "missed", "missed")],
)
def test_what_is_said_of_the_goals(tuned_ms: float, bad_start: str, default: str) -> None:
    table = rows(tuned_ms)
    assert [row[1] for row in table] == list(real.STARTS)
    assert [row[-1] for row in table] == [default, bad_start, bad_start, bad_start]
    expected = 100 * (tuned_ms / 9.0 - 1)
    assert table[0][5].startswith(f"{expected:+.1f} ± 0.")


def test_a_wide_margin_leaves_the_goal_open() -> None:
    assert real.judged((0.0, 0.1), 0.03) == "open"
    assert real.judged(None, 0.03) == "open"
    assert real.difference([{"a": 1.0}], "a", "a") == (0.0, 0.0)
    assert real.judged((0.0, 0.0), 0.0) == "shown"


def test_differences_are_paired_round_by_round() -> None:
    slow = [1.0, 2.0, 4.0, 8.0]
    assert real.difference([{"a": 1.1 * at, "b": at} for at in slow], "a", "b") == pytest.approx(
        (math.log(1.1), 0.0), abs=1e-9
    )


def test_settings_that_were_only_being_tried_do_not_count() -> None:
    row = {"tensor_fusion_threshold": "16", "cycle_time_ms": "0.5", "chunk_size_kb": "256",
           "one_shot_limit_kb": "0"}  # fmt: skip
    start = {"cycle_time": 100.0}
    assert real.outcome({**row, "accepted": "0"}, start) == {**real.DEFAULTS, **start}
    assert real.outcome({**row, "accepted": "1"}, start) == {
        "fusion_threshold": 16 * MIB, "cycle_time": 0.5, "chunk_size": 256 * 1024,
        "one_shot_limit": 0,
    }  # fmt: skip


def test_all_pieces_have_a_limit() -> None:
    names = [name for name, _ in real.pieces()]
    assert len(names) == len(set(names)) == 3 * len(real.TRAININGS) * (len(real.STARTS) + 2)
    for _, task in real.pieces():
        limits = (real.TUNE_S, real.COMPARE_S, real.IDLE_S)
        assert all(limit[task["np"]] < real.LONGEST_S for limit in limits)
