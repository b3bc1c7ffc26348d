"""Lightning scripts started by a launcher: from outside, and with an end that everybody notices."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")
pytest.importorskip("sklearn")

from rank_programs import lightning_launched
from support.jobs.ranks import clean_environment, hvdtune_command, mpirun_command, run_under

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_digits.py"


@pytest.mark.long
def test_the_example() -> None:
    launcher = hvdtune_command("run", "-np", "2")
    printed = run_under(launcher, EXAMPLE, "--epochs", 2)[0].stdout
    line = re.search(r"loss ([\d.]+) on 2 rank\(s\), best test accuracy ([\d.]+)", printed)
    assert line, printed
    assert float(line[1]) < 1.0
    assert float(line[2]) > 0.8
    assert printed.count("best test accuracy") == 1


@pytest.mark.long
def test_the_other_package_and_name_under_mpirun() -> None:
    first, second = run_under(mpirun_command(2), lightning_launched.fit_by_name).values
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["size"] == second["size"] == 2
    assert first["steps"] == second["steps"] == 3
    assert first["rate"] == pytest.approx(0.1)  # times 2 ranks
    assert first["weights"] == second["weights"]


@pytest.mark.long
def test_a_failing_rank_ends_the_job() -> None:
    launcher = hvdtune_command("run", "-np", "2")
    done = run_under(launcher, lightning_launched.fail, check=False)
    assert not any(done.values)
    assert done[0].returncode == 1
    assert "ArithmeticError: this rank has an accident" in done[0].stderr
    # The other one learns of it, and may be the first to end.
    assert re.search(r"rank [01] \(pid \d+ on \S+\) exited with code 1", done[0].stderr)


IMPORTS = {
    # Lightning cannot be found.
    "sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None": "is not installed here",
    # The one that is in use is too old.
    "sys.modules['pytorch_lightning'] = types.SimpleNamespace("
    "__version__='1.9.5', __name__='pytorch_lightning')": "pytorch_lightning here is 1.9.5",
}


@pytest.mark.parametrize("preparation", IMPORTS)
def test_import_without_lightning(preparation: str) -> None:
    code = f"import sys, types; {preparation}; import hvdtune.lightning"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: hvdtune.lightning needs PyTorch Lightning 2.6"), last
    assert IMPORTS[preparation] in last
    assert "pip install 'hvdtune[lightning]'" in last
