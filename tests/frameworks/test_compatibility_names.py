"""docs/compatibility.md about TensorFlow and Keras, held against hvdtune."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensorflow")
pytest.importorskip("keras")

DOCS = Path(__file__).resolve().parents[2] / "docs"

# Every row against the code, and against the row that is written without TensorFlow; every import.
PROGRAM = """
import generate_compatibility as generator

rows = generator.compared_rows("tensorflow")
for module, every in rows.items():
    for row in every:
        assert (row.status, row.difference) == generator.stated(module, row.name), (module, row)
for statement in generator.public_imports_table.TENSORFLOW:
    found = generator.outcome(statement)
    assert found == "works", f"{statement}: {found}"
print(sum(map(len, rows.values())), "rows")
generator.page()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=DOCS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.timeout(600)
def test_every_row_and_every_import() -> None:
    ended = run("-c", PROGRAM)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(ended.stdout.split()[0]) > 150


@pytest.mark.timeout(600)
def test_the_page_is_the_same_with_tensorflow() -> None:
    ended = run("generate_compatibility.py", "--check")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("wrong", ["a signature", "a status", "a name"])
def test_a_table_that_is_wrong_is_found(wrong: str) -> None:
    change = {
        "a signature": "contract['join'] = '(device=-1)'",
        "a status": "table.PARTIAL['horovod.tensorflow'] = {'allreduce': 'x'}",
        "a name": "contract['no_such_name'] = '()'",
    }[wrong]
    lines = [
        "import generate_compatibility as generator",
        "table = generator.tensorflow_table",
        "contract = table.CONTRACT['horovod.tensorflow']",
        change,
        "try:",
        "    generator.compared_rows('tensorflow')",
        "except generator.Contradiction as error:",
        "    print(error)",
    ]
    ended = run("-c", "\n".join(lines))
    assert ended.returncode == 0, ended.stderr
    assert "horovod.tensorflow." in ended.stdout
