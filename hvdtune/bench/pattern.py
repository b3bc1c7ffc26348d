"""Test data whose sums are exact, so that every wrong element can be counted.

The array of a rank repeats a tile of `PERIOD` small random integers, drawn from the rank's own
seed. The period is a prime, so that data displaced by a chunk, a page or a tensor are noticed. The
integers are small enough that the sum over all ranks is exact in the data type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

PERIOD = 4099

#: Rows of the tile compared at once; keeps the temporaries of `count_wrong` in cache.
_ROWS = 32

_SEED = 20261121


def largest_value(dtype: str, ranks: int) -> int:
    """The largest integer v such that ranks · v is exact in `dtype` (at most 250)."""
    import numpy as np

    kind = np.dtype(dtype)
    if kind == np.bool_:
        return 1
    limit = 2 ** (np.finfo(kind).nmant + 1) if kind.kind == "f" else int(np.iinfo(kind).max)
    return max(1, min(250, limit // ranks))


def tile(rank: int, ranks: int, dtype: str) -> numpy.ndarray[Any, Any]:
    """The tile of `rank`: shape (PERIOD,), the same on every rank that asks."""
    import numpy as np

    generator = np.random.default_rng((_SEED, rank))
    return generator.integers(0, largest_value(dtype, ranks) + 1, PERIOD).astype(dtype)


def tile_sum(ranks: int, dtype: str) -> numpy.ndarray[Any, Any]:
    """The sum of all ranks' tiles, shape (PERIOD,): exact; bool means "any"."""
    import numpy as np

    if np.dtype(dtype) == np.bool_:
        return np.logical_or.reduce([tile(rank, ranks, dtype) for rank in range(ranks)])
    total = np.zeros(PERIOD, np.int64)
    for rank in range(ranks):
        total += tile(rank, ranks, dtype).astype(np.int64)
    return total.astype(dtype)


def fill(array: numpy.ndarray[Any, Any], values: numpy.ndarray[Any, Any], offset: int = 0) -> None:
    """Fill a 1-d array with a tile; array[i] = values[(offset + i) mod PERIOD]."""
    for part, row in _parts(array, values, offset):
        part[...] = row


def count_wrong(
    array: numpy.ndarray[Any, Any], values: numpy.ndarray[Any, Any], offset: int = 0
) -> int:
    """How many elements of a 1-d array differ from what `fill` would have written."""
    import numpy as np

    return sum(int(np.count_nonzero(part != row)) for part, row in _parts(array, values, offset))


def _parts(array: Any, values: Any, offset: int) -> Any:
    """Cut `array` into blocks of whole periods (2-d) and the rest at the end (1-d)."""
    import numpy as np

    row = np.roll(values, -(offset % PERIOD))
    whole = array.size // PERIOD * PERIOD
    grid = array[:whole].reshape(-1, PERIOD)
    for start in range(0, len(grid), _ROWS):
        yield grid[start : start + _ROWS], row
    yield array[whole:], row[: array.size - whole]
