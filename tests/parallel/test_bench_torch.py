"""`hvdtune bench --device cuda` measures PyTorch tensors: here the same tensors in CPU memory."""

from __future__ import annotations

import pytest
from rank_programs import bench_torch
from support.jobs.ranks import run_ranks
from support.tiers import EVERY, long_too

DTYPES = {"allreduce": "float32", "allgather": "int64", "broadcast": "bool",
          "alltoall": "uint8", "reducescatter": "float16"}  # fmt: skip


def reported(operation: str, spoil: bool) -> list[dict]:
    records = run_ranks(2, bench_torch.measured, operation, DTYPES[operation], spoil).values[0]
    assert records[0]["kind"] == "begin"
    assert records[-1]["kind"] == "end"
    return [record for record in records if record["kind"] in ("sweep", "workload")]


@pytest.mark.parametrize("operation", long_too("allreduce", long=DTYPES if EVERY else ["alltoall"]))
def test_results_are_checked_in_cpu_memory(operation):
    records = reported(operation, spoil=False)
    assert [record["size_bytes"] for record in records][:2] == [48, 98304]
    measurements = [form for record in records[:2] for form in record["forms"].values()]
    if operation == "allreduce":
        assert records[2]["tensors"] == 1000
        assert records[2]["size_bytes"] == 1000 * 256 * 4
        measurements.append(records[2]["step"])
    assert all(measurement["wrong"] == 0 for measurement in measurements)
    assert all(measurement["time"]["iterations"] == 2 for measurement in measurements)


def test_wrong_results_are_counted():
    sweep = [record for record in reported("allreduce", spoil=True) if record["kind"] == "sweep"]
    assert [form["wrong"] for record in sweep for form in record["forms"].values()] == [2] * 4
