"""`hvdtune diff`: the change, how sure it is, its cause, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.recordings import synthetic_capture
from support.recordings.synthetic_capture import (
    Job,
    recording,
    step_seconds,
    tensors,
    write_capture,
)

from hvdtune.cli.main import main
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.report import comparison, comparison_text

PLANTED = synthetic_capture.planted()


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("late", "skew_wait_s"),
        pytest.param("threshold 0", "reduce_s", marks=pytest.mark.long),
        ("cycle 50 ms", "reduce_s"),
        ("no overlap", "reduce_s"),
    ],
)
def test_a_fault_that_was_mended(fault: str, part: str) -> None:
    bad, good = PLANTED[fault]
    before, after = analyse(recording(bad)), analyse(recording(good))
    numbers = comparison.compare(before, after)
    truth = 1 - step_seconds(good) / step_seconds(bad)
    step = numbers["step"]
    assert step["significant"]
    assert step["change"] == pytest.approx(truth, rel=0.05)
    assert step["low"] <= step["change"] <= step["high"]
    assert numbers["parts"][0]["name"] == part
    verdict = numbers["verdict"]
    assert verdict.startswith(f"b is {100 * step['change']:.0f} % ± ")
    assert "faster" in verdict
    assert numbers["parts"][0]["title"] in verdict.partition("because ")[2]
    # And the other way round.
    back = comparison.compare(after, before)
    assert back["step"]["change"] == pytest.approx(1 - 1 / (1 - step["change"]), rel=1e-6)
    assert "slower" in back["verdict"]


def test_a_setting_that_differs_is_named() -> None:
    bad, good = PLANTED["cycle 50 ms"]
    numbers = comparison.compare(analyse(recording(bad)), analyse(recording(good)))
    assert numbers["settings"] == [{"name": "HOROVOD_CYCLE_TIME", "a": 50.0, "b": 1.0}]
    assert "HOROVOD_CYCLE_TIME is 1 instead of 50" in numbers["verdict"]
    assert "HOROVOD_CYCLE_TIME" in comparison_text.text(numbers)


def test_where_two_runs_were_recorded_to_is_no_difference() -> None:
    bad, good = PLANTED["cycle 50 ms"]
    runs = [recording(bad), recording(good)]
    for number, run in enumerate(runs):
        for one in run.ranks.values():
            one.identity.settings.update(
                HOROVOD_TIMELINE=f"t{number}.json",
                HVDTUNE_TIMELINE_BUFFER_MB=16 + number,
                HVDTUNE_METRICS_PORT=9400 + number,
                HOROVOD_AUTOTUNE_LOG=f"log{number}.csv",
                HOROVOD_LOG_LEVEL=("INFO", "DEBUG")[number],
                HVDTUNE_SPIN_US=number,
            )
    numbers = comparison.compare(*map(analyse, runs))
    names = [one["name"] for one in numbers["settings"]]
    assert names == ["HOROVOD_CYCLE_TIME", "HVDTUNE_SPIN_US"]
    del runs[1].ranks[3]
    notes = comparison.compare(*map(analyse, runs))["notes"]
    assert notes == ["a has recordings of 4 ranks, b of 3: the times cover only these."]


def test_a_slow_stretch_shows_in_the_mean_only() -> None:
    bad, good = PLANTED["late for a while"]
    numbers = comparison.compare(analyse(recording(bad)), analyse(recording(good)))
    assert abs(numbers["step"]["change"]) < 0.01
    assert numbers["mean_step"]["significant"]
    assert numbers["mean_parts"][0]["name"] == "skew_wait_s"


def test_two_seeds_of_one_job_do_not_differ() -> None:
    job = Job(steps=80, noise=0.05)
    runs = [analyse(recording(replace(job, seed=seed))) for seed in (1, 2)]
    numbers = comparison.compare(*runs)
    assert not numbers["step"]["significant"]
    assert numbers["verdict"].startswith("The runs do not differ measurably: b takes ")
    assert "The settings are the same." in comparison_text.text(numbers)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(100):
        a, b = random.lognormal(0.0, 0.1, 60), 0.95 * random.lognormal(0.0, 0.1, 60)
        found = comparison.step_change(a, b, np.median)
        hits += found["low"] <= 0.05 <= found["high"]
    # 95 of 100 expected; fewer than 86 by chance once in ten thousand times.
    assert hits >= 86


def test_neighbouring_steps_that_are_alike_widen_the_interval() -> None:
    random = np.random.default_rng(3)
    noise = random.standard_normal(400)
    smooth = np.empty(400)
    smooth[0] = noise[0]
    for at in range(1, 400):
        smooth[at] = 0.95 * smooth[at - 1] + np.sqrt(1 - 0.95**2) * noise[at]
    shuffled = random.permutation(smooth)
    widths = []
    for values in (smooth, shuffled):
        found = comparison.step_change(1 + 0.1 * values, np.full(400, 1.0) + 0.1 * noise, np.mean)
        widths.append(found["high"] - found["low"])
    assert widths[0] > 1.3 * widths[1]


def test_too_few_steps_give_no_interval() -> None:
    runs = [analyse(recording(Job(steps=5, forward=one))) for one in (0.01, 0.02)]
    numbers = comparison.compare(*runs)
    assert numbers["step"]["low"] is None
    assert numbers["verdict"].startswith(
        "There are too few steps to tell (4 and 4; each run needs at least 8"
    )
    json.dumps(numbers, allow_nan=False)


def test_bandwidth_is_compared_size_by_size() -> None:
    slow, fast = Job(steps=20, speed=1e9), Job(steps=20, speed=2e9)
    found = comparison.compare(analyse(recording(slow)), analyse(recording(fast)))["bandwidth"]
    assert found
    row = max(found, key=lambda one: one["bytes_from"] * (one["op"] == "allreduce"))
    assert 0.5 < row["change"] < 1.0
    assert row["b_gbps"] > row["a_gbps"]


def test_other_tensors_are_another_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_capture(Job(ranks=2, steps=12), tmp_path, "a.json")
    b = write_capture(Job(ranks=2, steps=12, tensors=tensors(7, 5000)), tmp_path, "b.json")
    assert main(["diff", str(a), str(b)]) == 2
    error = capsys.readouterr().err
    assert "a communicates 20 tensors of 20 MiB a step, b 7 tensors of 34.2 KiB" in error
    assert "--force" in error
    assert main(["diff", str(a), str(b), "--force"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Verdict: ")
    assert "Note: a communicates 20 tensors" in " ".join(shown.split())


def test_what_is_sent_once_at_the_start_is_no_part_of_a_step() -> None:
    one = analyse(recording(Job(ranks=2, steps=12)))
    broadcasts = one.tensors.iloc[[0] * 25].assign(op="broadcast", count=1)
    more = replace(one)
    more.tensors = pd.concat([one.tensors, broadcasts], ignore_index=True)
    assert comparison.workloads(one, more) == (True, "")
    other = analyse(recording(Job(ranks=2, steps=12, tensors=tensors(7, 5000))))
    assert "a communicates 20 tensors of 20 MiB a step" in comparison.workloads(more, other)[1]


def test_names_may_differ_and_ranks_are_a_remark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = tuple(replace(one, name=f"other.{one.name}") for one in tensors(20))
    a = write_capture(Job(ranks=2, steps=12), tmp_path, "a.json")
    b = write_capture(Job(ranks=4, steps=12, tensors=renamed), tmp_path, "b.json")
    assert main(["diff", str(a), str(b), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["notes"] == ["a has 2 ranks, b 4: a step of b does not do the same work."]


def test_mistakes_get_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_capture(Job(ranks=1, steps=12), tmp_path, "a.json")
    none = write_capture(Job(ranks=1, steps=0), tmp_path, "none.json")
    horovods = Path(__file__).parents[1] / "data" / "horovod-timeline.json"
    for b, status, words in (
        (tmp_path / "gone.json", 1, "No such file"),
        (horovods, 2, "is not a recording made by hvdtune"),
        (none, 2, "(b) contains no training step"),
    ):
        assert main(["diff", str(good), str(b)]) == status
        shown = capsys.readouterr()
        assert shown.out == ""
        assert words in shown.err
        assert shown.err.count("\n") == 1
