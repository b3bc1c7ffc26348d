"""The formulas against nccl-tests' definitions, and the test data against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtune.bench import metrics, pattern
from hvdtune.bench.memory import MemoryCurve, MemoryPoint, sizes_up_to
from hvdtune.bench.sizes import format_size, parse_size, sweep_sizes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        # doc/PERFORMANCE.md of nccl-tests
        ("allreduce", 2, 1.0),
        ("allreduce", 8, 2 * 7 / 8),
        ("allgather", 8, 7 / 8),
        ("reducescatter", 4, 3 / 4),
        ("alltoall", 2, 1 / 2),
        ("broadcast", 8, 1.0),
        ("barrier", 8, None),
        ("allreduce", 1, None),
    ],
)
def test_busbw_factor_is_nccl_tests(operation, ranks, factor):
    assert metrics.busbw_factor(operation, ranks) == factor


def test_bandwidths_count_in_units_of_a_billion_bytes():
    assert metrics.algbw_gbs(2_000_000_000, 0.5) == 4.0
    assert metrics.busbw_gbs("allreduce", 2_000_000_000, 0.5, 8) == 7.0
    assert metrics.busbw_gbs("barrier", 0, 0.5, 8) is None


@pytest.mark.parametrize(("operation", "ranks"), [("sum", 2), ("allreduce", 0)])
def test_busbw_factor_names_what_is_wrong(operation, ranks):
    with pytest.raises(ValueError, match=r"'sum'|not 0"):
        metrics.busbw_factor(operation, ranks)


def test_memory_bound_of_the_documented_case():
    # 16 MiB on 2 ranks, copy 25.6 GB/s, stream 72 GB/s: 2 copies of S, 3 S streamed.
    seconds = metrics.memory_bound_seconds("allreduce", 16 << 20, 2, 25.6e9, 72e9)
    assert seconds == pytest.approx((16 << 20) * (2 / 25.6e9 + 3 / 72e9))


def test_memory_bound_is_that_of_its_two_halves():
    size, rates = 1 << 24, (20e9, 70e9)
    for ranks in (2, 3, 8):
        whole = metrics.memory_bound_seconds("allreduce", size, ranks, *rates)
        scatter = metrics.memory_bound_seconds("reducescatter", size, ranks, *rates)
        # What is left is fetching all but the own part, on every rank.
        assert whole - scatter == pytest.approx((ranks - 1) * size / rates[0])


@pytest.mark.parametrize(("operation", "size", "ranks"), [("barrier", 8, 4), ("allreduce", 8, 1)])
def test_no_memory_bound_where_nothing_moves(operation, size, ranks):
    assert metrics.memory_bound_seconds(operation, size, ranks, 1e9, 1e9) is None
    assert metrics.memory_bound_seconds("allreduce", 0, 4, 1e9, 1e9) is None


def test_percentile_is_the_nearest_rank():
    values = [float(value) for value in range(1, 201)]
    assert metrics.percentile(values, 0.5) == 100.0
    assert metrics.percentile(values, 0.99) == 198.0
    assert metrics.percentile([3.0], 0.99) == 3.0
    assert metrics.percentile([1.0, 2.0, 9.0], 0.99) == 9.0
    with pytest.raises(ValueError, match="at least one"):
        metrics.percentile([], 0.5)


def test_summary_pools_ranks_and_iterations():
    summary = metrics.summarise([[1.0, 4.0], [2.0, 3.0]])
    assert summary == metrics.Summary(iterations=2, mean=2.5, minimum=1.0, p50=2.0, p99=4.0)


def test_iterations_fill_the_budget_within_limits():
    assert metrics.iterations_for(0.01, 1.0, 5, 1000) == 100
    assert metrics.iterations_for(10.0, 1.0, 5, 1000) == 5
    assert metrics.iterations_for(1e-9, 1.0, 5, 1000) == 1000
    assert metrics.iterations_for(0.0, 1.0, 5, 1000) == 1000


def test_memory_curve_interpolates_over_the_logarithm_and_stops_at_its_ends():
    curve = MemoryCurve(2, (MemoryPoint(1 << 20, 40e9, 100e9), MemoryPoint(1 << 24, 20e9, 60e9)))
    assert curve.rates(1 << 22) == pytest.approx((30e9, 80e9))
    assert curve.rates(8) == (40e9, 100e9)
    assert curve.rates(GIB) == (20e9, 60e9)


def test_memory_is_measured_up_to_the_largest_operation():
    assert sizes_up_to(8)[-1] == sizes_up_to(1 << 18)[-1] == 1 << 18
    assert sizes_up_to(1 << 24)[-1] == 1 << 24
    assert list(sizes_up_to(GIB)) == sorted(sizes_up_to(GIB))


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("4K", 4096), ("128M", 1 << 27), ("1g", GIB), ("64MB", 1 << 26), ("2MiB", 2 << 20)],
)
def test_sizes_as_people_type_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "0", "-8", "8Q", "4 M B"])
def test_a_bad_size_is_named(text):
    with pytest.raises(ValueError, match="is not a size; accepted"):
        parse_size(text)


def test_sizes_as_people_read_them():
    assert [format_size(size) for size in (4, 65536, 3 << 19, GIB)] == [
        *("4 B", "64 KiB", "1.5 MiB", "1 GiB")
    ]


def test_sweep_reaches_its_end_and_divides_among_ranks():
    assert sweep_sizes(4, 64 << 20, 4, 4)[-1] == 64 << 20
    assert sweep_sizes(4, 64, 2, 4) == [4, 8, 16, 32, 64]
    assert sweep_sizes(4, 64, 2, 24) == [24, 48, 72]
    assert sweep_sizes(7, 7, 2, 1) == [7]
    for begin, end, factor in ((8, 4, 2), (0, 4, 2), (4, 8, 1.0)):
        with pytest.raises(ValueError, match="a sweep"):
            sweep_sizes(begin, end, factor, 4)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float16", "float32", "bool"])
@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_sums_of_the_test_data_are_exact(dtype, ranks):
    tiles = [pattern.tile(rank, ranks, dtype) for rank in range(ranks)]
    summed = pattern.tile_sum(ranks, dtype)
    assert summed.dtype == np.dtype(dtype)
    if dtype == "bool":
        assert np.array_equal(summed, np.any(tiles, axis=0))
        return
    assert np.array_equal(summed.astype(object), np.sum([t.astype(object) for t in tiles], axis=0))
    running = np.zeros_like(summed)
    for tile in reversed(tiles):
        running += tile  # every partial sum in the type itself, in another order
    assert np.array_equal(running, summed)


@pytest.mark.parametrize("size", [0, 1, pattern.PERIOD - 1, pattern.PERIOD, 100_003, 300_001])
@pytest.mark.parametrize("offset", [0, 5, 3 * pattern.PERIOD + 17])
def test_every_wrong_element_is_counted(size, offset):
    values = pattern.tile(3, 8, "float32")
    array = np.full(size, -1.0, np.float32)
    pattern.fill(array, values, offset)
    assert np.array_equal(array, values[(np.arange(size) + offset) % pattern.PERIOD])
    assert pattern.count_wrong(array, values, offset) == 0
    places = sorted({0, size // 3, size - 1} & set(range(size)))
    array[places] = np.nan
    assert pattern.count_wrong(array, values, offset) == len(places)


def test_data_in_the_wrong_place_or_of_the_wrong_rank_are_seen():
    array = np.empty(100_000, np.float32)
    pattern.fill(array, pattern.tile(0, 4, "float32"))
    shifted = np.roll(array, 4096)
    assert pattern.count_wrong(shifted, pattern.tile(0, 4, "float32")) > 90_000
    assert pattern.count_wrong(array, pattern.tile(1, 4, "float32")) > 90_000
