"""Rank programs: the results of every torch collective, in all its forms."""

from __future__ import annotations

import gc
import os
import random
import time
import warnings
from itertools import product

import torch
from rank_programs import torch_forms as forms
from rank_programs.torch_cases import (
    ALL,
    FLOATS,
    INTEGERS,
    error_of,
    inputs,
    mine,
    rank_input,
    reduced,
    run_checks,
    same,
)

import hvdtune.torch as hvd

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (5,), (3, 0, 2), (17, 3, 2))
OPS = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)
ends = hvd.ProcessSet([0])


def everyone() -> range:
    return range(hvd.size())


def allreduce_forms() -> None:
    for dtype, shape, op in product(ALL, SHAPES, OPS):
        if dtype is torch.bool and op == hvd.Average:
            continue
        what = (dtype, shape, op)
        expected = reduced(inputs(dtype, shape, everyone()), op, dtype)
        tensor = mine(dtype, shape)
        same(hvd.allreduce(tensor, op=op), expected, what)
        same(hvd.synchronize(hvd.allreduce_async(tensor, op=op, name="x")), expected, what)
        same(tensor, mine(dtype, shape), (*what, "input changed"))
        assert hvd.allreduce_(tensor, op=op) is tensor
        same(tensor, expected, what)
        tensor = mine(dtype, shape)
        assert hvd.synchronize(hvd.allreduce_async_(tensor, op=op, name="y")) is tensor
        same(tensor, expected, what)


def average_is_the_default() -> None:
    mean = torch.full((4,), (hvd.size() - 1) / 2)
    for form in (*forms.ALLREDUCES, *forms.GROUPED_ALLREDUCES):
        for average, expected in ((None, mean), (True, mean), (False, mean * hvd.size())):
            tensor = torch.full((4,), float(hvd.rank()))
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = forms.complete(form, [tensor], average=average)
            got = result[0] if form in forms.GROUPED else result
            same(got, expected, f"{form}, average={average}")
            deprecated = [w for w in seen if w.category is DeprecationWarning]
            assert len(deprecated) == (average is not None), (form, average)
            for warning in deprecated:
                assert "op=" in str(warning.message)
                # It must name the caller's file: Python hides it otherwise.
                assert warning.filename == forms.__file__, (form, warning.filename)


def scale_factors() -> None:
    size = hvd.size()
    for dtype in FLOATS:
        values = mine(dtype, (9,))
        got = hvd.allreduce(values, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        same(got, (inputs(dtype, (9,), everyone()).sum(0) * 2.0).to(dtype), dtype)
    for dtype in (torch.int32, torch.int64):
        # Integers are scaled element by element, and cut off toward zero each time.
        values = torch.tensor([1, -1, 3], dtype=dtype)
        got = hvd.allreduce(values, op=hvd.Sum, prescale_factor=0.5)
        same(got, torch.tensor([0, 0, size], dtype=dtype), dtype)
        got = hvd.allreduce(values, op=hvd.Sum, postscale_factor=0.3)
        expected = [int(size * 0.3), -int(size * 0.3), int(3 * size * 0.3)]
        same(got, torch.tensor(expected, dtype=dtype), dtype)
    got = hvd.allreduce(torch.full((2,), 3.0), op=hvd.Max, prescale_factor=2, postscale_factor=5)
    same(got, torch.full((2,), 30.0), "factors apply to Max, too")


def grouped_allreduce_forms() -> None:
    members = [
        (torch.float32, (5,)),
        (torch.int64, (2, 3)),
        (torch.bfloat16, ()),
        (torch.float32, (0,)),
    ]
    for op in (hvd.Average, hvd.Sum, hvd.Max):
        expected = [reduced(inputs(d, s, everyone()), op, d) for d, s in members]
        tensors = [mine(d, s) for d, s in members]
        results = {
            "list": hvd.grouped_allreduce(tensors, op=op),
            "iterator": hvd.grouped_allreduce(iter(tensors), op=op, name="group"),
            "async": hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=op, name="group")),
        }
        assert isinstance(results["list"], list)
        assert isinstance(results["async"], tuple)
        for form, result in results.items():
            for got, wanted in zip(result, expected, strict=True):
                same(got, wanted, (form, op))
        result = hvd.grouped_allreduce_(tensors, op=op)
        assert isinstance(result, tuple)
        assert all(got is tensor for got, tensor in zip(result, tensors, strict=True))
        for got, wanted in zip(tensors, expected, strict=True):
            same(got, wanted, ("in place", op))


def large_group() -> None:
    """Described in one message at its first use, however many members it has (up to thousands)."""
    tensors = [torch.full((1, 1, 1, 2), float(index)) for index in range(8000)]
    for _ in range(2):
        results = hvd.grouped_allreduce(tensors, op=hvd.Average, name="large")
        assert all(map(torch.equal, results, tensors))


def empty_groups() -> None:
    assert hvd.grouped_allreduce([]) == []
    assert list(hvd.grouped_allgather([])) == []
    assert hvd.grouped_reducescatter([]) == []
    assert hvd.grouped_allreduce_([]) == ()
    for start in (
        hvd.grouped_allreduce_async,
        hvd.grouped_allreduce_async_,
        hvd.grouped_allgather_async,
        hvd.grouped_reducescatter_async,
    ):
        handle = start([])
        assert hvd.synchronize(handle) == ()


def allgather_forms() -> None:
    for dtype in ALL:
        for tail in ((), (3,), (2, 2), (0,)):
            # Rank 0 has no rows.
            whole = torch.cat([rank_input(r, dtype, (r * 2, *tail)) for r in everyone()])
            tensor = mine(dtype, (hvd.rank() * 2, *tail))
            same(hvd.allgather(tensor), whole, (dtype, tail))
            same(hvd.synchronize(hvd.allgather_async(tensor, "rows")), whole, (dtype, tail))
    members = [(torch.float32, (2,)), (torch.uint8, ()), (torch.float64, (4,))]
    tensors = [mine(d, (hvd.rank() + 1, *t)) for d, t in members]
    expected = [torch.cat([rank_input(r, d, (r + 1, *t)) for r in everyone()]) for d, t in members]
    for result in (
        hvd.grouped_allgather(tensors),
        hvd.synchronize(hvd.grouped_allgather_async(tensors, name="g")),
    ):
        assert isinstance(result, tuple)
        for got, wanted in zip(result, expected, strict=True):
            same(got, wanted, "grouped_allgather")


def results_are_ordinary_tensors() -> None:
    result = hvd.allgather(torch.ones(4, dtype=torch.bfloat16))
    result += 1  # writable
    del result
    gathered = [hvd.allgather(torch.full((1000,), float(i))) for i in range(20)]
    gc.collect()
    for i, tensor in enumerate(gathered):  # memory is not shared with later results
        same(tensor, torch.full((1000 * hvd.size(),), float(i)), i)
        assert torch.from_numpy(tensor.numpy()).sum() == i * 1000 * hvd.size()


def broadcast_forms() -> None:
    for dtype, shape in product(ALL, SHAPES):
        for root in everyone():
            expected = rank_input(root, dtype, shape)
            tensor = mine(dtype, shape)
            same(hvd.broadcast(tensor, root), expected, (dtype, shape, root))
            handle = hvd.broadcast_async(tensor, root, "b")
            same(hvd.synchronize(handle), expected, (dtype, shape, root))
            same(tensor, mine(dtype, shape), "input changed")
            assert hvd.broadcast_(tensor, root) is tensor
            same(tensor, expected, (dtype, shape, root))
            tensor = mine(dtype, shape)
            assert hvd.synchronize(hvd.broadcast_async_(tensor, root)) is tensor
            same(tensor, expected, (dtype, shape, root))


def rows_between(sender: int, receiver: int) -> int:
    return (sender * 2 + receiver) % 3


def alltoall_forms() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in ALL:
        blocks = [
            [rank_input(10 * s + r, dtype, (rows_between(s, r), 2)) for r in everyone()]
            for s in everyone()
        ]
        splits = [rows_between(rank, r) for r in everyone()]
        tensor = torch.cat([*blocks[rank], torch.zeros((2, 2), dtype=dtype)])  # 2 rows stay
        expected = torch.cat([blocks[s][rank] for s in everyone()])
        counts = torch.tensor([rows_between(s, rank) for s in everyone()], dtype=torch.int32)
        for form in (splits, torch.tensor(splits, dtype=torch.int32), tuple(splits)):
            got, received = hvd.alltoall(tensor, form)
            same(got, expected, (dtype, form))
            same(received, counts, (dtype, form))
        got, received = hvd.synchronize(hvd.alltoall_async(tensor, splits, "a"))
        same(got, expected, dtype)
        same(received, counts, dtype)
    tensor = torch.arange(size * 2).reshape(-1, 2) + 100 * rank
    even = hvd.alltoall(tensor)
    same(
        even,
        torch.stack([torch.arange(size * 2).reshape(-1, 2)[rank] + 100 * s for s in everyone()]),
        "even",
    )
    got, received = hvd.synchronize(hvd.alltoall_async(tensor))
    same(got, even, "even, async")
    same(received, torch.ones(size, dtype=torch.int32), "even, async")


def reducescatter_forms() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype, rows, op in product((*FLOATS, *INTEGERS), (0, 1, 5, 2 * size), OPS[:2]):
        shape = (rows, 3)
        first = rank * (rows // size) + min(rank, rows % size)
        count = rows // size + (rank < rows % size)
        whole = reduced(inputs(dtype, shape, everyone()), op, dtype)
        expected = whole[first : first + count]
        tensor = mine(dtype, shape)
        what = (dtype, rows, op)
        same(hvd.reducescatter(tensor, op=op), expected, what)
        same(hvd.synchronize(hvd.reducescatter_async(tensor, "r", op)), expected, what)
        other = mine(dtype, (rows,))
        wanted = reduced(inputs(dtype, (rows,), everyone()), op, dtype)[first : first + count]
        group = hvd.grouped_reducescatter([tensor, other], op=op)
        assert isinstance(group, list)
        asynchronous = hvd.synchronize(hvd.grouped_reducescatter_async([tensor, other], "g", op))
        assert isinstance(asynchronous, tuple)
        for pair in (group, asynchronous):
            same(pair[0], expected, what)
            same(pair[1], wanted, what)
        same(tensor, mine(dtype, shape), "input changed")
    got = hvd.reducescatter(torch.ones(size), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    same(got, torch.full((1,), 1.5 * size), "factors")


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


def handles() -> None:
    first = hvd.allreduce_async(torch.ones(2))
    second = hvd.allreduce_async(torch.ones(2))
    assert type(first) is int
    assert second > first > 0
    while not hvd.poll(second):
        time.sleep(0)
    same(hvd.synchronize(second), torch.ones(2), "handle")
    assert hvd.synchronize(second) is None
    error_of(lambda: hvd.poll(second), ValueError, "was not created or has been cleared")
    hvd.init()  # once more: nothing changes, and handles stay valid
    assert hvd.synchronize(first) is not None


def inputs_live_until_the_end() -> None:
    handles = [hvd.allreduce_async(torch.full((50_000,), float(i)), name=f"t{i}") for i in range(8)]
    gc.collect()
    _ = [torch.full((50_000,), -1.0) for _ in range(8)]  # takes memory that is free by mistake
    for i, handle in enumerate(handles):
        same(hvd.synchronize(handle), torch.full((50_000,), float(i)), i)


def many_in_any_order() -> None:
    order = list(range(100))
    random.Random(hvd.rank()).shuffle(order)
    tensors = {i: torch.full((i + 1,), float(i + hvd.rank())) for i in order}
    started = {i: hvd.allreduce_async_(tensors[i], op=hvd.Sum, name=f"n{i}") for i in order}
    for i in reversed(order):
        result = hvd.synchronize(started[i])
        total = float(sum(i + r for r in everyone()))
        same(result, torch.full((i + 1,), total), i)


def process_sets() -> None:
    assert ends.included() == (hvd.rank() in ends.ranks)
    if ends.included():
        members = ends.ranks
        tensor = mine(torch.float32, (4, 2))
        stacked = inputs(torch.float32, (4, 2), members)
        same(hvd.allreduce(tensor, process_set=ends), stacked.mean(0).float(), "allreduce")
        pair = hvd.grouped_allreduce([tensor, tensor], op=hvd.Sum, process_set=ends)
        same(pair[1], stacked.sum(0).float(), "grouped_allreduce")
        gathered = torch.cat([rank_input(r, torch.float32, (4, 2)) for r in members])
        same(hvd.allgather(tensor, process_set=ends), gathered, "allgather")
        root = members[-1]  # a global rank
        expected = rank_input(root, torch.float32, (4, 2))
        same(hvd.broadcast(tensor, root, process_set=ends), expected, "broadcast")
        same(
            hvd.reducescatter(tensor, process_set=ends).sum(),
            hvd.reducescatter(tensor, process_set=ends).sum(),
            "reducescatter",
        )
        assert hvd.reducescatter(tensor, process_set=ends).shape[0] == 4 // len(members)
        even = hvd.alltoall(tensor, process_set=ends)
        assert even.shape == (4, 2)
        hvd.barrier(process_set=ends)
        assert hvd.broadcast_object({"from": hvd.rank()}, root, process_set=ends) == {"from": root}
    else:
        for call in (
            lambda: hvd.allreduce(torch.ones(2), process_set=ends),
            lambda: hvd.barrier(process_set=ends),
            lambda: hvd.broadcast_(torch.ones(2), 0, process_set=ends),
        ):
            error_of(call, ValueError, "is not a member of the provided process set")
    # Unnamed operations of a set do not shift the names of the others.
    same(hvd.allreduce(torch.ones(3)), torch.ones(3), "after the set's operations")
    unregistered = hvd.ProcessSet([0])
    error_of(
        lambda: hvd.allreduce(torch.ones(2), process_set=unregistered), ValueError, "ranks=[0]"
    )


def adasum_of_one_rank() -> None:
    """Every tensor is its own Adasum. More ranks: torch_adasum.py."""
    if hvd.size() > 1:
        return
    for dtype in FLOATS:
        mine = rank_input(0, dtype, (9,))
        same(hvd.allreduce(mine, op=hvd.Adasum), mine, dtype)
        same(hvd.allreduce(mine, op=hvd.Adasum, postscale_factor=2.0), mine * 2, dtype)
    error_of(
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum),
        hvd.HorovodInternalError,
        "Unsupported data type",
    )


def barrier_and_join() -> None:
    assert hvd.barrier() is None
    last = hvd.join()
    assert type(last) is int
    assert last in everyone()
    same(hvd.allgather(torch.tensor([last])), torch.full((hvd.size(),), last), "join")


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
    global ends
    error_of(hvd.size, ValueError, "has not been initialized")
    error_of(
        lambda: hvd.allreduce(torch.ones(2)),
        hvd.HorovodInternalError,
        "has not been initialized",
    )
    size = int(os.environ["HOROVOD_SIZE"])
    sets = []
    if size > 1:
        ends = hvd.ProcessSet([0] if size == 2 else [size - 1, 0])
        sets = [ends]
    hvd.init(process_sets=sets)
    if size == 1:
        ends = hvd.global_process_set
    return run_checks(
        allreduce_forms,
        average_is_the_default,
        scale_factors,
        grouped_allreduce_forms,
        large_group,
        empty_groups,
        allgather_forms,
        results_are_ordinary_tensors,
        broadcast_forms,
        alltoall_forms,
        reducescatter_forms,
        sparse_allreduce,
        compression,
        handles,
        inputs_live_until_the_end,
        many_in_any_order,
        process_sets,
        adasum_of_one_rank,
        barrier_and_join,
        queries,
        again_after_shutdown,
    )
