"""The benchmark of what a timeline costs that is off: what it reads, and what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
_path = list(sys.path)
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "timeline")]

import instructions  # noqa: E402
import off  # noqa: E402

sys.path[:] = _path

COUNTED = """\
# callgrind format
version: 1
part: 2
desc: Trigger: --dump-before=getppid
positions: line
events: Ir sysCount sysTime
summary: 5000 40 7

ob=(1) /somewhere/_native.so
fl=(1) /src/native/engine/engine.cc
fn=(1) hvdtune::Engine::wait(long, long)
16 3000 30
fi=(2) /src/native/observe/capture/capture.h
+3 12
fe=(1)
* 5
cob=(2) /lib/libc.so.6
cfi=(3) ???
cfn=(2) futex
calls=7 0
* 900 9
+1 8
cfn=(3) hvdtune::Recorder::closed(unsigned long, long, long)
calls=2 30
-1 40

fl=(4) /src/native/engine/recording/recorder.cc
fn=(3)
30 33
fl=(3)
fn=(2)
0 942
totals: 4000 30 7
"""


def test_what_callgrind_has_counted() -> None:
    assert instructions.total(COUNTED) == {"instructions": 4000, "system calls": 30}
    without_system_calls = COUNTED.replace(" sysCount sysTime", "").replace("4000 30 7", "4000")
    assert instructions.total(without_system_calls)["instructions"] == 4000


def test_instructions_are_where_they_were_executed_not_where_they_were_called() -> None:
    places = instructions.by_place(COUNTED)
    assert places == {
        ("hvdtune::Engine::wait(long, long)", "/src/native/engine/engine.cc"): 3013,
        ("hvdtune::Engine::wait(long, long)", "/src/native/observe/capture/capture.h"): 12,
        ("hvdtune::Recorder::closed(unsigned long, long, long)",
         "/src/native/engine/recording/recorder.cc"): 33,
        ("futex", "???"): 942,
    }  # fmt: skip
    assert sum(places.values()) == 4000


def test_the_recorders_functions_and_lines_are_told_apart() -> None:
    counted = instructions.Counted(8.0, 1.0, instructions.by_place(COUNTED))
    assert off.recorders(counted) == {"Recorder::closed": 33, off.INLINED: 12}


def one(count: float, recorder: float, lines: bool = True) -> dict[str, object]:
    own = {"Recorder::closed": recorder} if recorder else {}
    return {
        "instructions": count, "system calls": 2.0, "line numbers": lines, "recorder": own,
    }  # fmt: skip


def test_the_page_says_what_there_is_left_of_a_recording() -> None:
    found = {
        "never recorded": [one(1000, 10), one(1004, 10), one(1002, 10)],
        "recorded and stopped": [one(1005, 10), one(1001, 10), one(1003, 10)],
        "recording": [one(2000, 700)] * 3,
    }
    assert off.scatter(found) == pytest.approx(0.004)
    page = off.page(found)
    assert "| never recorded | 1000, 1004, 1002 | 1002 | 10 (1.00 %) | 2.00 |" in page
    assert "| recording | 2000, 2000, 2000 | 2000 | 700 (35.00 %) | 2.00 |" in page
    assert "a step's instructions change by +0.10 %" in page
    assert "differ by up to 0.40 %" in page
    assert "| Recorder::closed | 10 |" in page
    assert "no line numbers" not in page
    assert "no line numbers" in off.page({**found, "never recorded": [one(1000, 0, False)] * 3})
