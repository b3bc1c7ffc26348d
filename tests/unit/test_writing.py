"""Benchmarks writing.py and phases.py without their jobs: what is made of what was measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def writing(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "experiments"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import writing

    yield writing
    for name in ("writing", "phases"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("cached", "streamed", "kind"), [(4.0, 1.0, "far"), (1.2, 1.0, "mixed"), (0.5, 1.0, "near")]
)
def test_a_turn_tells_how_far_apart_the_cpus_are(writing, cached, streamed, kind):
    assert writing.kind_of({"cached": cached, "streamed": streamed}) == kind


def test_the_least_time_has_the_switches_in_it(writing, capsys):
    turn = {"pace": 400e-6, "bound": 100e-6, "switches": 200.0}
    writing.show_least(1 << 20, "far", [turn], 0.5e-6)
    words = capsys.readouterr().out.split()
    assert words == ["1", "MiB", "far", "100.0", "200.0", "200.0", "25%", "50%"]


def test_a_size_without_a_bound_has_no_line(writing, capsys):
    writing.show_least(4096, "near", [{"cached": 1e-6, "streamed": 2e-6, "auto": 1e-6}], 1e-6)
    writing.show_least(1 << 20, "near", [], 1e-6)
    assert capsys.readouterr().out == ""


def test_two_processes_that_give_way_switch(writing):
    before = os.sched_getaffinity(0)
    assert writing.switch_seconds() > 0
    assert os.sched_getaffinity(0) == before


def test_every_part_of_a_call_is_in_one_phase(writing, capsys):
    import phases

    from hvdtune.timeline.analysis.answers import PARTS

    columns = [part for names in phases.COLUMNS.values() for part in names]
    assert sorted(columns) == sorted(PARTS)
    parts = {part: 10.0**-number for number, part in enumerate(columns, 2)}
    phases.show(2, 1 << 20, {"step_s": sum(parts.values()), "parts_s": parts})
    found = [float(cell) for cell in capsys.readouterr().out.split()[3:]]
    assert found[0] == pytest.approx(sum(found[1:]), abs=0.5)
    assert found[2] == 1.0  # pack
