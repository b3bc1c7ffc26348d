"""examples/digits.py: accuracy, equal weights, and one loss curve for any np.

tests/launch/test_hosts.py starts it as a user does, between hosts.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from rank_programs import digits
from support.jobs.ranks import run_ranks


def train(np: int, loss_log: Path) -> tuple[str, list[float]]:
    """What was printed, and the loss after every step."""
    result = run_ranks(np, digits.train, 15, "--loss-log", str(loss_log), timeout=240)
    with loss_log.open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    return result.values[0]["printed"], losses


@pytest.mark.long
def test_digits(tmp_path: Path) -> None:
    _, alone = train(1, tmp_path / "alone.csv")
    printed, together = train(4, tmp_path / "together.csv")
    final = re.search(r"final test accuracy ([\d.]+); weights identical on all ranks", printed)
    assert final, printed
    assert float(final[1]) > 0.97
    assert len(together) == len(alone) > 400
    assert together == pytest.approx(alone, rel=2e-5, abs=2e-6)
