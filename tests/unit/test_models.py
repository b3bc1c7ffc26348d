"""The models of the shared-memory protocols hold, and find the faults that can be put into them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "native" / "models"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_models_hold_and_find_every_mutant() -> None:
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on PATH (Debian: apt install {tool})")
    done = subprocess.run(
        [str(MODELS / "check.sh")], capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line.startswith("ok ") for line in done.stdout.splitlines())


def test_every_model_and_every_mutant_is_checked() -> None:
    checks = (MODELS / "checks").read_text(encoding="utf-8")
    readme = (MODELS / "README.md").read_text(encoding="utf-8")
    models = sorted(MODELS.glob("*.pml"))
    assert models
    for path in models:
        assert re.search(rf"^sound {path.stem}\b", checks, re.MULTILINE), f"{path} is not checked"
        assert f"`{path.name}`" in readme
        mutants = set(re.findall(r"MUTANT_\w+", path.read_text(encoding="utf-8")))
        assert mutants, f"{path} has no mutants"
        checked = set(re.findall(rf"^faulty {path.stem} .*?-D(MUTANT_\w+)", checks, re.MULTILINE))
        assert checked == mutants
