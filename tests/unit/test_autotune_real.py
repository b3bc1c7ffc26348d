"""The benchmark of real training: what it compares, what it chooses, what it says of the goals."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "autotune"
_path = list(sys.path)
sys.path.insert(0, str(HARNESS))

import real  # noqa: E402

sys.path[:] = _path

MIB = 2**20
RUNS = [real.tune_name("tiny", 2, start, 1) for start in real.STARTS]
TUNED = f"tuned: {RUNS[0]}"
BETTER = {**real.DEFAULTS, "cycle_time": 7.0}


def times(name: str, tuned_ms: float) -> float:
    """Grid point 4 is the fastest of the grid, all starts end with the same settings."""
    return {
        "grid 4": 9.0,
        "grid 5": 9.1,
        "start: both": 100.0,
        TUNED: tuned_ms,
    }.get(name, 10.0)


def found(tuned_ms: float = 9.0, rounds: int = 40) -> dict[str, Any]:
    """A comparison in which all starts ended with BETTER."""

    def measured(names: list[str], number: int) -> dict[str, float]:
        wobble = 1.001 if number % 4 < 2 else 0.999
        ours = {TUNED}
        return {name: times(name, tuned_ms) * (wobble if name in ours else 1.0) for name in names}

    tried = real.all_settings(dict.fromkeys(RUNS, BETTER))
    known_as = real.as_measured(tried)
    best, choosing = real.choose(known_as, measured)
    judged, bad = real.judges(known_as, best)
    judging = [
        measured([*judged, *(bad if number % real.BAD_EVERY == 0 else [])], number)
        for number in range(rounds)
    ]
    return {"tried": tried, "best": best, "choosing": choosing, "judging": judging}


def run(steps: int, **others: Any) -> dict[str, Any]:
    """What a run from a start left behind."""
    return {
        "steps": steps, "samples": 20, "finished": True, "values": BETTER, "left_after": None,
        "search": 0.01, **others,
    }  # fmt: skip


def stored(tuned_ms: float) -> dict[str, Any]:
    return {**{name: run(800) for name in RUNS}, "tiny np2 compare": found(tuned_ms)}


def rows(tuned_ms: float) -> list[list[str]]:
    lines = real.report(stored(tuned_ms)).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| 2 |" in line]
    return [row for row in cells if row[1] != "not measured"]


def test_equal_settings_are_measured_once() -> None:
    tried = real.all_settings(dict.fromkeys(RUNS, BETTER))
    measured = real.as_measured(tried)
    assert {measured[f"tuned: {name}"] for name in RUNS} == {TUNED}
    assert "start: the defaults" in {measured[f"grid {at}"] for at in range(len(real.GRID))}
    assert len({tuple(tried[name].values()) for name in tried}) == len(set(measured.values()))


def test_the_better_half_of_the_grid_goes_on() -> None:
    one = found()
    assert one["best"] == "grid 4"
    counts = [len(values) for values in one["choosing"]]
    assert counts == [left for left, rounds in real.HALVING for _ in range(rounds)]
    assert set(one["choosing"][-1]) == {"grid 4", "grid 5"}


def test_the_rounds_that_judge_do_not_choose() -> None:
    one = found()
    assert set(one["judging"][1]) == {"grid 4", "start: the defaults", TUNED}
    assert {"start: both", "start: threshold 0"} <= set(one["judging"][real.BAD_EVERY])
    assert not {"grid 5", "start: both"} & set(one["judging"][1])


@pytest.mark.parametrize(
    ("tuned_ms", "bad_start", "default"),
    [(9.1, "shown", "shown"), (9.9, "missed", "shown"), (10.1, "missed", "missed")],
)
def test_what_is_said_of_the_goals(tuned_ms: float, bad_start: str, default: str) -> None:
    table = rows(tuned_ms)
    assert [row[1] for row in table] == list(real.STARTS)
    assert [row[-1] for row in table] == [default, bad_start, bad_start]
    expected = 100 * (tuned_ms / 9.0 - 1)
    assert table[0][8].startswith(f"{expected:+.1f} ± 0.")


def test_a_wide_margin_leaves_the_goal_open() -> None:
    assert real.judged((0.0, 0.1), 0.03) == "open"
    assert real.judged(None, 0.03) == "open"
    assert real.difference([{"a": 1.0}], "a", "a") == (0.0, 0.0)
    assert real.judged((0.0, 0.0), 0.0) == "shown"


def test_differences_are_paired_round_by_round() -> None:
    slow = [1.0, 2.0, 4.0, 8.0]
    rounds = [{"a": 1.1 * at, "b": at} for at in slow]
    rounds += [{"b": 3.0}]  # a bad start is not in every round
    assert real.difference(rounds, "a", "b") == pytest.approx((math.log(1.1), 0.0), abs=1e-9)


def test_rounds_that_something_disturbs_do_not_count() -> None:
    quiet = [0.01 * (at % 3) for at in range(30)]
    disturbed = [*quiet, 1.0, 2.0, -3.0]
    assert real.trimmed(disturbed) == pytest.approx(real.trimmed(quiet), abs=0.002)
    assert real.trimmed([0.0, 1.0]) is None


def test_the_margin_is_what_its_name_says() -> None:
    """Of means of nothing but noise one in twenty lies outside of it."""
    rng = random.Random(1)
    outside = 0
    for _ in range(600):
        mean, margin = real.trimmed([rng.gauss(0, 0.1) for _ in range(30)])
        outside += abs(mean) > margin
    assert 12 <= outside <= 52


def test_a_comparison_goes_on_until_every_difference_is_clear() -> None:
    rounds = found()["judging"]
    judged = ["grid 4", "start: the defaults", TUNED]
    assert real.is_clear(rounds, judged, "grid 4")
    rough = [{**one, TUNED: 9 + number % 5} for number, one in enumerate(rounds)]
    assert not real.is_clear(rough, judged, "grid 4")


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
    places = len(real.TUNE_S) * len(real.TRAININGS)
    assert len(names) == len(set(names)) == places * (len(real.STARTS) * real.RUNS + 1)
    assert len(real.pieces(1)) == places * (len(real.STARTS) + 1)
    for _, task in real.pieces():
        limits = (real.TUNE_S, real.JUDGE_S)
        assert all(limit[task["np"]] < real.LONGEST_S for limit in limits)


def test_pieces_of_another_tuner_can_be_measured_again() -> None:
    kept = stored(9.0)
    name = RUNS[-1]
    assert not real.is_missing(kept, name, None)
    assert real.is_missing(kept, name, "now")  # nobody knows what it was made with
    assert real.is_missing({}, name, None)
    kept[name]["made_with"] = "now"
    assert not real.is_missing(kept, name, "now")
    assert real.is_missing(kept, name, "later")
    assert real.fingerprint() == real.fingerprint()


def test_new_outcomes_wait_for_the_comparison_that_belongs_to_them() -> None:
    kept = stored(9.0)
    before = real.report(kept)
    tasks = dict(real.pieces())
    new = run(123, made_with="now")
    for name in real.tune_names(tasks["tiny np2 compare"], kept):
        real.keep(kept, name, new, tasks[name])
        assert not real.is_missing(kept, name, "now")
        assert real.is_missing(kept, "tiny np2 compare", "now")
    assert real.report(kept) == before
    real.keep(kept, "tiny np2 compare", {**found(), "made_with": "now"}, tasks["tiny np2 compare"])
    assert real.AGAIN not in kept
    assert real.report(kept).count("| 123 |") == len(real.STARTS)


def test_the_slowest_of_several_runs_is_told_and_all_are_counted() -> None:
    kept = stored(9.0)
    again = real.tune_name("tiny", 2, "both", 2)
    kept[again] = run(1234, samples=31, left_after=150, values={**BETTER, "cycle_time": 3.0})
    told = kept["tiny np2 compare"]
    told["tried"][f"tuned: {again}"] = kept[again]["values"]
    for one in told["judging"]:
        one[f"tuned: {again}"] = 1.2 * one[TUNED]
    text = real.report(kept)
    [row] = [line for line in text.splitlines() if "| 800, 1234 |" in line]
    assert "| 2 | both | 100.00 ms | 20, 31 | 800, 1234 | -, 150 |" in row
    assert row.endswith("| missed |")
    assert "- 4 runs; 0 not finished." in text
    assert "- samples: 20 in the median, 31 at the 95th percentile." in text
    assert "Starts of which a run ended slower beyond the noise: 0 of 3." in text
    assert "from bad starts: shown 1, open 0, missed 1." in text


def test_first_outcomes_wait_for_nothing() -> None:
    kept: dict[str, Any] = {}
    name = RUNS[-1]
    real.keep(kept, name, {"steps": 1}, dict(real.pieces())[name])
    assert kept == {name: {"steps": 1}}
