"""`hvdtune tune`, started as users start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ranks import clean_environment, hvdtune_command

from hvdtune.autotune import log
from hvdtune.autotune.store import Store

SCRIPT = str(Path(__file__).parents[1] / "rank_programs" / "short_training.py")
# Little, but 45 steps at least; the budget only matters if something hangs.
LITTLE = (
    *("--budget", "4m", "--autotune-warmup-samples", "15", "--autotune-steps-per-sample", "3"),
    *("--autotune-bayes-opt-max-samples", "2", "--fusion-threshold-mb", "128"),
    *("--chunk-size", "0"),
)


def tune(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvdtune_command("tune", *arguments),
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_short_script_is_run_until_the_end_of_the_search(tmp_path: Path) -> None:
    store, path = tmp_path / "store.json", tmp_path / "log.csv"
    files = ("--autotune-store", str(store), "--autotune-log-file", str(path))
    ended = tune("-np", "2", *LITTLE, *files, "--", sys.executable, SCRIPT, "40")
    assert ended.returncode == 0, ended.stderr
    rows = log.read(path)
    assert [row["phase"] for row in rows[14:17]] == ["warmup", "baseline", "search"]
    assert rows[-1]["phase"] == "final"
    # More steps than one run of the script has.
    cost = re.search(r"; cost: (\d+) steps", ended.stderr)
    assert cost is not None
    assert int(cost[1]) > 40
    assert {row["tensor_fusion_threshold"] for row in rows} == {"128"}
    assert ended.stderr.count("hvdtune autotune: ") == 1
    assert rows[-1]["decision"] in ended.stderr
    if "remembered" not in ended.stderr:
        # So rough was the machine that nothing is certain.
        assert rows[-1]["accepted"] == "0"
        assert not store.exists()
        return
    [profile] = Store(store).read().values()
    assert profile.program == "short_training.py"
    assert profile.identity["work"] == {"tensors": 10, "bytes": 40_000}


def test_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    ended = tune("-np", "2", *LITTLE, sys.executable, SCRIPT, "30", "fail")
    assert ended.returncode == 1
    assert "hvdtune tune: the program ended with exit status 3." in ended.stderr
    assert "about to fail" in ended.stderr
    assert ended.stdout == ""
