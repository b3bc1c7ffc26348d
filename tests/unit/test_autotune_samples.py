"""benchmarks/autotune/samples.py: what the samples of a tuning were for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hvdtune.autotune.report.runs import Run, Sample

AUTOTUNE = Path(__file__).parents[2] / "benchmarks" / "autotune"
sys.path.insert(0, str(AUTOTUNE))

import samples  # noqa: E402

sys.path.remove(str(AUTOTUNE))

START = {"fusion_mb": 128.0, "cycle_ms": 1.0}
SLOW, SAME, BOTH, BEST = (
    {"fusion_mb": 0.0, "cycle_ms": 1.0},
    {"fusion_mb": 64.0, "cycle_ms": 1.0},
    {"fusion_mb": 64.0, "cycle_ms": 2.0},
    {"fusion_mb": 128.0, "cycle_ms": 0.5},
)
#: Phase, settings, ms, decision, and what that is.
ROWS = (
    ("warmup", START, 12.0, "", "warm-up"),
    ("baseline", START, 10.0, "", "baseline"),
    ("search", SLOW, 20.0, "abandoned", "given up early"),
    ("search", START, 10.0, "incumbent", "incumbent repeated"),
    ("search", SAME, 10.0, "", "without effect"),
    ("search", START, 10.0, "incumbent", "incumbent repeated"),
    ("search", BOTH, 10.0, "", "no better"),
    ("search", START, 10.0, "incumbent", "incumbent repeated"),
    ("search", BEST, 9.0, "", "faster"),
    ("search", START, 10.0, "incumbent", "incumbent repeated"),
    ("search", BOTH, 10.0, "measured again", "measured again"),
    ("search", START, 10.0, "incumbent", "incumbent repeated"),
    ("confirm", BEST, 9.9, "pair 1 of at most 33", "pairs again"),
    ("confirm", START, 10.0, "pair 1 of at most 33", "pairs again"),
    ("confirm", BEST, 9.0, "pair 1 of at most 33", "pairs"),
    ("confirm", START, 10.0, "pair 1 of at most 33", "pairs"),
)


def tuning() -> Run:
    """The rows as a run; each sample has 20 steps, and its error is 0.2 %."""
    found = [
        Sample(number, phase, settings, cost, 0.002 * cost, 20, 20 * cost / 1e3, decision)
        for number, (phase, settings, cost, decision, _) in enumerate(ROWS, start=1)
    ]
    return Run(found, Sample(len(found) + 1, "final", BEST, 9.0), True)


def test_each_sample_is_of_one_kind():
    run = tuning()
    assert samples.kinds(run) == [kind for *_, kind in ROWS]
    assert set(samples.kinds(run)) == set(samples.KINDS)


def test_the_table_counts_samples_steps_and_seconds():
    run = tuning()
    found = samples.spent(run)
    assert sum(one.samples for one in found.values()) == len(ROWS)
    assert found["incumbent repeated"].steps == 5 * 20
    assert found["pairs"].seconds == 20 * 0.009 + 20 * 0.010
    lines = samples.table(run)
    assert lines[-4].split()[:3] == ["all", str(len(ROWS)), str(20 * len(ROWS))]
    assert lines[-3] == "4 candidates; 3 samples behind the best"
    assert lines[-2] == f"the start was left after {20 * len(ROWS)} steps"
    # Behind the first incumbent there are candidates of 10, 10, 9 and 10 ms, and one before it.
    assert lines[-1] == f"the search's steps: {100 * -0.1 / 10:+.1f} %"


def test_the_first_adoption_is_when_the_start_is_left():
    run = tuning()
    assert samples.left_the_start_after(Run(run.samples[:-4], None, None)) is None
    more = [*run.samples, Sample(17, "search", BEST, 9.0, 0.02, 20, 0.2, "incumbent")]
    more += [Sample(18, "search", SAME, 10.0, 0.02, 20, 0.2, "")]
    later = Run(more, run.final, True)
    assert samples.left_the_start_after(later) == 20 * len(ROWS)
    assert samples.cost_of_search(Run(run.samples[:2])) is None


def test_a_log_that_is_none_is_one_sentence(tmp_path):
    (tmp_path / "log.csv").write_text("what,ever\n1,2\n")
    ended = subprocess.run(
        [sys.executable, AUTOTUNE / "samples.py", tmp_path / "log.csv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("samples.py: ")
    assert ended.stderr.count("\n") == 1
