"""examples/digits.py as a user runs it: accuracy, equal weights, and one loss curve for any np."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from support.jobs.ranks import hvdtune_command, run_under

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


def train(np: int, loss_log: Path) -> tuple[str, list[float]]:
    """What was printed, and the loss after every step."""
    launcher = hvdtune_command("run", "-np", str(np))
    result = run_under(launcher, EXAMPLE, "--epochs", 15, "--loss-log", loss_log, timeout=240)
    with loss_log.open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    return result[0].stdout, losses


@pytest.mark.long
def test_digits(tmp_path: Path) -> None:
    _, alone = train(1, tmp_path / "alone.csv")
    printed, together = train(4, tmp_path / "together.csv")
    final = re.search(r"final test accuracy ([\d.]+); weights identical on all ranks", printed)
    assert final, printed
    assert float(final[1]) > 0.97
    assert len(together) == len(alone) > 400
    assert together == pytest.approx(alone, rel=2e-5, abs=2e-6)


@pytest.mark.long
def test_batch_that_cannot_be_divided(tmp_path: Path) -> None:
    launcher = hvdtune_command("run", "-np", "2")
    result = run_under(launcher, EXAMPLE, "--batch-size", "7", check=False)
    assert result[0].returncode == 2
    assert "--batch-size 7 cannot be divided evenly among 2 ranks" in result[0].stderr
