"""docs/compatibility.md about MXNet, held against hvdtune."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("mxnet")

DOCS = Path(__file__).resolve().parents[2] / "docs"

PROGRAM = """
import generate_compatibility as generator

[(module, rows)] = generator.compared_rows("mxnet").items()
for row in rows:
    assert (row.status, row.difference) == generator.stated(module, row.name), row
for statement in generator.public_imports_table.MXNET:
    found = generator.outcome(statement)
    assert found == "works", f"{statement}: {found}"
generator.FRAMEWORKS["mxnet"].CONTRACT[module]["allreduce"] = "(tensor, op=None)"
try:
    generator.compared_rows("mxnet")
except generator.Contradiction as error:
    print(len(rows), error)
"""


def test_every_row_and_every_import() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=DOCS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    count, wrong = ended.stdout.split(maxsplit=1)
    assert int(count) > 40
    assert wrong.startswith("horovod.mxnet.allreduce")
