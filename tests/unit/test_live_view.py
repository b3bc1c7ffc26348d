"""What `hvdtune top` shows of a status, as text and on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.recordings.live_samples import sample_status, status_at_start

from hvdtune.live import view


def test_every_fact_is_in_the_text():
    shown = view.text(sample_status(notes={"tuner": "warming up"}))
    for part in (
        "train.py: 3 ranks, pid 4711, up 3 min, job 1f2e3d",
        "4.00 steps/s, 500 so far",
        "250.0 ms: 160 tensors, 95.4 MiB in 4 batches",
        "40% of the step",
        "400 MB/s reduced on each rank, 46.6 GiB so far",
        "7 tensors: 5 for ranks, 2 for a batch or its execution",
        "rank 1 (a, pid 4712) costs 30.0 ms a step (12%), last in 80% of the steps",
        "none now",
        "warming up",
        "fusion threshold 61 MiB, cycle time 1.5 ms, epoch 2",
    ):
        assert part in shown, shown
    ranks = shown[shown.index("late/step") :].splitlines()[1:]
    assert [line.split()[0] for line in ranks] == ["1", "2", "0"], "the latest first"


def test_what_is_not_known_yet_is_said():
    shown = view.text(status_at_start())
    assert shown.count("not known yet") == 3
    assert "None" not in shown


def test_what_takes_long_once_is_shown_as_a_start():
    shown = view.text(sample_status())
    assert "start    the first step ended after 12.5 s; not counted in rates" in shown
    again = view.text(sample_status(one_time_s=4.0))
    assert "after 12.5 s, 4.0 s once in the last steps; not counted in rates" in again
    earlier = sample_status()
    del earlier["start_s"], earlier["one_time_s"]
    assert "not counted in rates" not in view.text(earlier)


def test_no_rate_is_made_of_the_start():
    shown = view.text(sample_status(steps=0, step_s=None, start_s=None, bytes=10_000_000))
    assert "9.54 MiB reduced on each rank so far" in shown
    assert "MB/s" not in shown
    assert "not counted in rates" not in shown


def test_the_rate_is_that_since_the_reading_before():
    before = sample_status(uptime_s=198.0, bytes=49_000_000_000)
    assert "500 MB/s" in view.text(sample_status(), before)
    restarted = sample_status(uptime_s=300.0)
    assert "400 MB/s" in view.text(sample_status(), restarted)


def test_stragglers_and_stalls_are_shown():
    status = sample_status(
        straggler=1, stalled_tensors=3, stalled_for_s=61.0, stall="Ranks 0,2 wait for 3 tensors"
    )
    shown = view.text(status)
    assert "rank 1 (a, pid 4712) holds the others up: it costs 30.0 ms a step (12%)" in shown
    assert "3 tensors wait for missing ranks, reported 61.0 s ago" in shown
    assert shown.endswith("Ranks 0,2 wait for 3 tensors")


def test_a_host_that_is_late_as_a_whole_is_shown():
    late = {"late_s": 0.05, "share": 0.2, "last_share": 0.95, "chance": 1e-9}
    hosts = [{"ranks": [0, 1], **late}, {"ranks": [2], **late, "late_s": 0.0}]
    shown = view.text(sample_status(hosts=hosts))
    assert "host a (ranks 0, 1) costs 50.0 ms a step (20%), last in 95% of the steps\n" in shown
    named = view.text(sample_status(hosts=hosts, straggler_host=0, straggler=1))
    assert "host a (ranks 0, 1) holds the others up: it costs 50.0 ms a step" in named
    assert "; rank 1 (a, pid 4712) holds the others up: it costs 30.0 ms a step" in named
    nobody = view.text(sample_status(hosts=[], lateness=[{**late, "late_s": 0.0}] * 3))
    assert "none: no rank waits for another" in nobody


@pytest.mark.parametrize(("chance", "named"), [(0.8, False), (0.01, False), (1e-5, True)])
def test_what_chance_explains_is_nobodys(chance: float, named: bool):
    status = sample_status(hosts=[])
    for one in status["lateness"]:
        one["chance"] = chance
    shown = dict(view.rows(status))["slowest"]
    nobody = "no rank in particular: ranks wait 31.0 ms of a step (12%) for the last one"
    assert shown == ("rank 1 (a, pid 4712) costs 30.0 ms a step (12%), last in 80% of the steps"
                     if named else nobody)  # fmt: skip


def test_ranks_of_a_late_host_are_red():
    status = sample_status(straggler_host=0)
    output = io.StringIO()
    Console(file=output, force_terminal=True, width=120).print(view.frame(status))
    red = [line for line in output.getvalue().splitlines() if "\x1b[31m" in line]
    assert [("4711" in line, "4712" in line, "99" in line) for line in red[-2:]] == [
        (False, True, False),
        (True, False, False),
    ], "the latest first"


def test_the_terminal_shows_the_same_whatever_the_names_are():
    status = sample_status(program="[red]odd[/] name", straggler=1)
    status["ranks"][1]["host"] = "[bold]host"
    for width in (40, 120):
        console = Console(file=io.StringIO(), width=width, force_terminal=True)
        console.print(view.frame(status))
    shown = Console(file=(out := io.StringIO()), width=160)
    shown.print(view.frame(status))
    assert "[red]odd[/] name" in out.getvalue()
    assert "[bold]host" in out.getvalue()
    assert "4.00 steps/s" in out.getvalue()
    Console(file=io.StringIO()).print(view.frame(status_at_start()))


def test_the_queue_says_what_it_waits_for():
    def queue(count: int, for_ranks: int) -> str:
        return dict(view.rows(sample_status(queue=count, queue_for_ranks=for_ranks)))["queue"]

    assert queue(0, 0) == "empty"
    assert queue(1, 1) == "1 tensor: 1 for ranks"
    assert queue(3, 0) == "3 tensors: 3 for a batch or its execution"


def test_only_the_latest_ranks_of_many_are_listed():
    many = sample_status(
        lateness=[{"late_s": rank / 1e3, "share": 0.0, "last_share": 0.0} for rank in range(64)],
        ranks=[{"host": "a", "pid": rank} for rank in range(64)],
        size=64,
    )
    assert [row[0] for row in view.rank_rows(many)] == [str(rank) for rank in range(63, 55, -1)]


def test_units():
    assert view.time_text(0.00012) == "0.1 ms"
    assert view.time_text(65) == "65.0 s"
    assert view.time_text(600) == "10 min"
    assert view.time_text(3 * 3600 + 180) == "3 h 03 min"


def test_gpus_are_shown_with_what_is_wrong_with_them():
    def said(*gpus: dict) -> str:
        return dict(view.rows({**sample_status(), "gpus": list(gpus)}))["GPUs"]

    fine = {"utilization_ratio": 0.97, "power_watts": 650.4, "throttled_by_heat": 0.0}
    assert said(fine) == "1 GPU, 97% busy, up to 650 W"
    hot = {**fine, "utilization_ratio": 0.4, "throttled_by_heat": 1.0, "throttled_by_power": 1.0}
    broken = {"ecc_uncorrected_errors": 2.0, "ecc_corrected_errors": 9.0, "throttled_by_heat": 1.0}
    assert said(fine, hot, broken) == (
        "3 GPUs, 40% to 97% busy, up to 650 W; GPUs 1, 2: throttled by heat; GPU 1: throttled by "
        "power; GPU 2: memory errors that could not be corrected"
    )
    assert "GPUs" not in dict(view.rows({**sample_status(), "gpus": []}))
    shown = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    shown.print(view.frame({**sample_status(), "gpus": [hot]}))
    assert "\x1b[31m1 GPU, 40% busy" in shown.file.getvalue()
