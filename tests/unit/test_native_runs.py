"""Programs of the native tests that run in the gaps of other tests: what of it counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import native_runs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build of six programs."""
    scripts = {
        "test_a": "exit 0",
        "test_fails": "echo too late; exit 1",
        # Its report begins far before the part that is shown.
        "test_races": "echo 'SUMMARY: ThreadSanitizer: data race'; seq 9999; exit 66",
        "test_runs_on": "sleep 1000 & exit 0",
        "test_without_memory": "echo 'SUMMARY: AddressSanitizer: out-of-memory'; exit 1",
        "test_silent": "kill -9 $$",
    }
    sources, built = tmp_path / "sources", tmp_path / "built"
    sources.mkdir()
    built.mkdir()
    for name, body in scripts.items():
        (sources / f"{name}.cc").touch()
        (built / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/order\n{body}\n")
        (built / name).chmod(0o755)
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
    assert (tmp_path / "order").read_text().split() == native_runs.names()


def test_nothing_is_begun_when_it_was_stopped(programs: Path, tmp_path: Path) -> None:
    gaps = native_runs.Gaps(tmp_path)
    gaps.stop()
    gaps.run_all(programs)
    assert not (tmp_path / "order").exists()
    assert not gaps.busy
    assert native_runs.early(programs) == native_runs.Early(frozenset(), ())


def test_a_run_says_what_was_wrong(programs: Path) -> None:
    assert native_runs.run([str(programs / "test_a")]) == ""
    assert native_runs.run([str(programs / "test_fails")]).endswith(": 1\ntoo late\n")
