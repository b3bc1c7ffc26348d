"""Native tests that run in the gaps of other tests: what of it counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import native_runs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build of six files of tests, three a room."""
    bodies = {
        "test_a": "exit 0",
        "test_fails": "echo too late; exit 1",
        # Its report begins far before the part that is shown.
        "test_races": "echo 'SUMMARY: ThreadSanitizer: data race'; seq 9999; exit 66",
        "test_runs_on": "sleep 1000 & exit 0",
        "test_without_memory": "echo 'SUMMARY: AddressSanitizer: out-of-memory'; exit 1",
        "test_silent": "kill -9 $$",
    }
    cases = "".join(f"{name}.) {body} ;;\n" for name, body in bodies.items())
    sources, built = tmp_path / "sources", tmp_path / "built"
    built.mkdir()
    for room in ("upper", "lower"):
        (sources / room).mkdir(parents=True)
        program = built / f"{room}_tests"
        program.write_text(
            f"#!/bin/sh\necho {room} $1 >>{tmp_path}/order\ncase $1 in\n{cases}esac\n"
        )
        program.chmod(0o755)
    for number, name in enumerate(bodies):
        (sources / ("upper", "lower")[number % 2] / f"{name}.cc").touch()
    monkeypatch.setattr(native_runs, "SOURCES", sources)
    return built


def test_what_passed_and_what_a_sanitizer_found_count(programs: Path, tmp_path: Path) -> None:
    native_runs.Gaps(tmp_path).run_all(programs)
    found = native_runs.early(programs)
    assert found.passed == {"test_a", "test_runs_on"}
    [report] = found.reports
    assert "test_races" in report
    assert report.endswith("9999\n")
    assert len(report) < 9999 * 4
    order = (tmp_path / "order").read_text().splitlines()
    assert order == [f"{file.room} {file.name}." for file in native_runs.test_files()]
    assert sorted(order) == [
        "lower test_fails.", "lower test_runs_on.", "lower test_silent.",
        "upper test_a.", "upper test_races.", "upper test_without_memory.",
    ]  # fmt: skip


def test_nothing_is_begun_when_it_was_stopped(programs: Path, tmp_path: Path) -> None:
    gaps = native_runs.Gaps(tmp_path)
    gaps.stop()
    gaps.run_all(programs)
    assert not (tmp_path / "order").exists()
    assert not gaps.busy
    assert native_runs.early(programs) == native_runs.Early(frozenset(), ())


def test_a_run_says_what_was_wrong(programs: Path) -> None:
    good, bad = native_runs.TestFile("upper", "test_a"), native_runs.TestFile("lower", "test_fails")
    assert native_runs.run(good.command(programs)) == ""
    assert native_runs.run(bad.command(programs)).endswith(": 1\ntoo late\n")
