"""docs/compatibility.md is what its script makes, and the script sees what it must."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

# horovod.torch's exports, written down once more: a row may not vanish from the table.
EXPORTS = """
elastic Compression allgather_object broadcast_object broadcast_optimizer_state
broadcast_parameters allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce
grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_ sparse_allreduce_async allgather
allgather_async grouped_allgather grouped_allgather_async broadcast broadcast_async broadcast_
broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async grouped_reducescatter
grouped_reducescatter_async join barrier poll synchronize init shutdown is_initialized
start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set Average Sum
Adasum Min Max Product HorovodInternalError DistributedOptimizer SyncBatchNorm
"""


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    before = set(sys.modules)
    finders = sys.meta_path[:]
    import generate_compatibility

    yield generate_compatibility
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "horovod" or (DOCS / f"{name}.py").exists():
            del sys.modules[name]


def test_the_page_is_up_to_date():
    made = subprocess.run(
        [sys.executable, DOCS / "generate_compatibility.py", "--check"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr


def test_every_export_has_a_row_and_every_row_its_object(generator):
    import hvdtune.torch as hvd

    assert sorted(generator.table.TORCH) == sorted(EXPORTS.split())
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    for name in EXPORTS.split():
        assert f"| `{name}`" in page
        assert hasattr(hvd, name) or name in generator.table.NOT_AVAILABLE["horovod.torch"]


def refused(generator, *fragments):
    return pytest.raises(generator.Contradiction, match=".*".join(fragments))


def test_signatures_are_compared(generator):
    wanted = "(tensor, name=None, op=Average, **kwargs)"

    def check(function):
        return generator.added_parameters("f", wanted, function)

    assert check(lambda tensor, name=None, op=0, **kwargs: None) == []
    assert check(lambda tensor, name=None, op=0, more=1, **kwargs: None) == ["more"]
    with refused(generator, "parameter 1"):
        check(lambda tensor, op=0, name=None, **kwargs: None)
    with refused(generator, "name defaults to ''"):
        check(lambda tensor, name="", op=0, **kwargs: None)
    with refused(generator, "op defaults to False"):
        check(lambda tensor, name=None, op=False, **kwargs: None)
    with refused(generator, "parameter 2"):
        check(lambda tensor, name=None: None)
    with refused(generator, "no further keywords"):
        check(lambda tensor, name=None, op=0: None)
    with refused(generator, "needs more"):
        check(lambda tensor, name=None, op=0, *, more, **kwargs: None)


def test_statuses_are_held_against_the_code(generator, monkeypatch):
    table = generator.table
    monkeypatch.setattr(table, "SUPERSET", {"m": {"more": "Has `extra`.", "twice": "x"}})
    monkeypatch.setattr(table, "PARTIAL", {"m": {"twice": "y"}})
    monkeypatch.setattr(table, "NOT_AVAILABLE", {"m": {"gone": "why"}})
    missing = generator.MISSING

    def extended(a, extra=None):
        pass

    assert generator.judge("m", "plain", "()", lambda: None) == ("same", "")
    assert generator.judge("m", "gone", "()", missing) == ("not available", "why")
    assert generator.judge("m", "more", "(a)", extended) == ("superset", "Has `extra`.")
    assert generator.judge("m", "constant", "3", 3) == ("same", "")
    with refused(generator, "m.gone exists"):
        generator.judge("m", "gone", "()", lambda: None)
    with refused(generator, "m.lost is missing"):
        generator.judge("m", "lost", "()", missing)
    with refused(generator, "extra", "says nothing"):
        generator.judge("m", "silent", "(a)", extended)
    with refused(generator, "two statuses"):
        generator.judge("m", "twice", None, extended)
    with refused(generator, "m.constant is True"):
        generator.judge("m", "constant", "1", True)
