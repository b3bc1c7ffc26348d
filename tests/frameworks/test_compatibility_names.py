"""docs/compatibility.md about TensorFlow and Keras, held against hvdtune."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensorflow")
pytest.importorskip("keras")

pytestmark = pytest.mark.timeout(600)
DOCS = Path(__file__).resolve().parents[2] / "docs"

# Every row against the code, and against the row that is written without TensorFlow; every import;
# the page; and tables that are wrong. In one process: it loads three frameworks.
PROGRAM = """
import json
from unittest import mock

import generate_compatibility as generator

found = {"rows": 0, "differ": [], "imports": {}, "told": {}}
for module, every in generator.compared_rows("tensorflow").items():
    found["rows"] += len(every)
    for row in every:
        if (row.status, row.difference) != generator.stated(module, row.name):
            found["differ"].append(f"{module}: {row}")
for statement in generator.public_imports_table.TENSORFLOW:
    found["imports"][statement] = generator.outcome(statement)
found["page"] = generator.page() == generator.PAGE.read_text(encoding="utf-8")

table = generator.FRAMEWORKS["tensorflow"]
contract = table.CONTRACT["horovod.tensorflow"]
for wrong, changed, entry in (
    ("a signature", contract, {"join": "(device=-1)"}),
    ("a status", table.PARTIAL, {"horovod.tensorflow": {"allreduce": "x"}}),
    ("a name", contract, {"no_such_name": "()"}),
):
    with mock.patch.dict(changed, entry):
        try:
            generator.compared_rows("tensorflow")
        except generator.Contradiction as error:
            found["told"][wrong] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=DOCS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    read: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return read


def test_every_row(found: dict[str, Any]) -> None:
    assert not found["differ"]
    assert found["rows"] > 150


def test_every_import(found: dict[str, Any]) -> None:
    assert found["imports"]
    assert {*found["imports"].values()} == {"works"}, found["imports"]


def test_the_page_is_the_same_with_tensorflow(found: dict[str, Any]) -> None:
    assert found["page"], "run python docs/generate_compatibility.py"


@pytest.mark.parametrize("wrong", ["a signature", "a status", "a name"])
def test_a_table_that_is_wrong_is_found(found: dict[str, Any], wrong: str) -> None:
    assert "horovod.tensorflow." in found["told"][wrong]
