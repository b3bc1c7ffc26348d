"""Rank programs: results of what only torch has; those of all faces are in tests/conformance."""

from __future__ import annotations

import gc

import torch
from rank_programs.torch_cases import (
    error_of,
    run_checks,
    same,
)

import hvdtune.torch as hvd


def everyone() -> range:
    return range(hvd.size())


def results_are_ordinary_tensors() -> None:
    result = hvd.allgather(torch.ones(4, dtype=torch.bfloat16))
    result += 1  # writable
    del result
    gathered = [hvd.allgather(torch.full((1000,), float(i))) for i in range(20)]
    gc.collect()
    for i, tensor in enumerate(gathered):  # memory is not shared with later results
        same(tensor, torch.full((1000 * hvd.size(),), float(i)), i)
        assert torch.from_numpy(tensor.numpy()).sum() == i * 1000 * hvd.size()


def sparse_allreduce() -> None:
    size, rank = hvd.size(), hvd.rank()
    indices = torch.tensor([[rank, rank + 1], [0, 1]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (size + 1, 2))
    whole = torch.stack(
        [
            torch.sparse_coo_tensor(
                indices - indices.new_tensor([[rank - r], [0]]), [1.0, 2.0], (size + 1, 2)
            ).to_dense()
            for r in everyone()
        ]
    ).sum(0)
    for op, expected in ((hvd.Sum, whole), (hvd.Average, whole / size)):
        wait = hvd.sparse_allreduce_async(tensor, name="s", op=op)
        assert callable(wait)
        assert hvd.synchronize(wait) is None
        result = wait()
        assert result.is_sparse
        same(result.to_dense(), expected, op)
    # A hybrid tensor (an embedding's gradient), without an entry on rank 0.
    rows = torch.arange(rank).unsqueeze(0)
    hybrid = torch.sparse_coo_tensor(rows, torch.ones(rank, 3), (size, 3))
    got = hvd.sparse_allreduce_async(hybrid, "h", hvd.Sum)().to_dense()
    column = torch.tensor([float(size - 1 - row) for row in range(size)])
    same(got, column.unsqueeze(1).expand(size, 3), "hybrid")
    error_of(
        lambda: hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum),
        ValueError,
        "dense",
        "sparse COO",
    )


def compression() -> None:
    same(
        hvd.allreduce(torch.full((3,), 0.1), compression=hvd.Compression.fp16, op=hvd.Max),
        torch.full((3,), 0.1).half().float(),
        "fp16",
    )
    huge = hvd.allreduce(torch.tensor([70000.0]), compression=hvd.Compression.fp16)
    assert huge.item() == float("inf")
    whole = torch.tensor([70000], dtype=torch.int64)
    same(hvd.allreduce(whole, compression=hvd.Compression.fp16, op=hvd.Max), whole, "integers")
    group = hvd.grouped_allreduce(
        [torch.full((2,), 0.1, dtype=torch.float64), whole],
        compression=hvd.Compression.fp16,
        op=hvd.Min,
    )
    same(group[0], torch.full((2,), 0.1).half().double(), "grouped fp16")
    same(group[1], whole, "grouped fp16, integers")
    rows = hvd.reducescatter(torch.full((hvd.size(),), 0.1), compression=hvd.Compression.fp16)
    same(rows, torch.full((1,), 0.1).half().float(), "reducescatter fp16")
    pair = hvd.grouped_reducescatter(
        [torch.full((hvd.size(),), 0.1)], compression=hvd.Compression.fp16
    )
    same(pair[0], torch.full((1,), 0.1).half().float(), "grouped_reducescatter fp16")

    class Halved:
        @staticmethod
        def compress(tensor):  # type: ignore[no-untyped-def]
            return tensor / 2, "context"

        @staticmethod
        def decompress(tensor, ctx):  # type: ignore[no-untyped-def]
            assert ctx == "context"
            return tensor * 2

    same(hvd.allreduce(torch.ones(2), compression=Halved), torch.ones(2), "own compressor")


def a_tensor_twice_in_a_group() -> None:
    """It is reduced once, however many chunks of a message are between its two places."""
    total = float(sum(rank + 1 for rank in everyone()))
    for count in (10, 100_000, 400_000):
        tensor = torch.full((count,), float(hvd.rank() + 1))
        for result in hvd.grouped_allreduce_([tensor, tensor], op=hvd.Sum):
            same(result, torch.full((count,), total), count)
        tensor.fill_(4.0)
        for result in hvd.grouped_allreduce_([tensor, tensor], prescale_factor=0.5):
            same(result, torch.full((count,), 2.0), count)


def inputs_live_until_the_end() -> None:
    handles = [hvd.allreduce_async(torch.full((50_000,), float(i)), name=f"t{i}") for i in range(8)]
    gc.collect()
    _ = [torch.full((50_000,), -1.0) for _ in range(8)]  # takes memory that is free by mistake
    for i, handle in enumerate(handles):
        same(hvd.synchronize(handle), torch.full((50_000,), float(i)), i)


def queries() -> None:
    assert hvd.is_initialized()
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() is True
    for query in (hvd.mpi_built, hvd.gloo_built, hvd.ddl_built, hvd.ccl_built, hvd.rocm_built):
        assert isinstance(query(), bool)
    assert isinstance(hvd.nccl_built(), int)
    assert hvd.global_process_set.ranks == list(everyone())


def again_after_shutdown() -> None:
    for _ in range(3):
        fetched_by_nobody = hvd.allreduce_async(torch.ones(2))
        hvd.barrier()
        hvd.shutdown()
        assert hvd.synchronize(fetched_by_nobody) is None
        assert not hvd.is_initialized()
        hvd.init()
        same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())), "again")


def run() -> list[str]:
    hvd.init()
    return run_checks(
        results_are_ordinary_tensors,
        sparse_allreduce,
        compression,
        a_tensor_twice_in_a_group,
        inputs_live_until_the_end,
        queries,
        again_after_shutdown,
    )
