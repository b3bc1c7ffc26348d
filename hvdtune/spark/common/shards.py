"""One rank's share of a Parquet folder, in batches: every row once an epoch over all ranks.

All ranks agree on an order of the row groups, and each rank takes a run of rows of the same length
(to within one row). Rows are shuffled by visiting the row groups in a new order each epoch and by
drawing from a buffer. Memory holds the current row group, the next one (read ahead), and the
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdtune.spark.common.columns import Columns, from_table, size_of_row

DEFAULT_BUFFER = 1 << 28  # bytes


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of a row group."""

    fragment: Any
    row_group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


def row_groups(folder: str, storage_options: Mapping[str, Any] | None = None) -> list[Piece]:
    """All row groups of the Parquet files in a folder (a path or URL), in the files' order.

    Raises FileNotFoundError if there is no such folder.
    """
    import pyarrow.dataset
    from fsspec.core import url_to_fs

    system, path = url_to_fs(folder, **(storage_options or {}))
    is_local = "file" in (system.protocol if isinstance(system.protocol, tuple) else ())
    # Arrow's own file system reads without Python.
    dataset = pyarrow.dataset.dataset(
        path, format="parquet", filesystem=None if is_local else system
    )
    fragments = sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)
    return [
        Piece(fragment, group.id, 0, group.num_rows)
        for fragment in fragments
        for group in fragment.row_groups
        if group.num_rows
    ]


def deal(groups: Sequence[Piece], shard: int, count: int, seed: int | None = None) -> list[Piece]:
    """The rows of shard `shard` of `count`; shards differ by at most one row.

    seed: for the order of the row groups, the same for all shards; None keeps their order.
    """
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(groups))
        groups = [groups[index] for index in order]
    total = sum(group.rows for group in groups)
    first, last = shard * total // count, (shard + 1) * total // count
    taken, before = [], 0
    for group in groups:
        start, stop = max(first - before, 0), min(last - before, group.rows)
        if start < stop:
            taken.append(
                Piece(group.fragment, group.row_group, group.start + start, group.start + stop)
            )
        before += group.rows
    return taken


class ShardReader:
    """Batches of one shard, epoch after epoch.

    folder: path or URL. columns: the columns to read. batch_size: rows. epochs: None for endless.
    shuffle: whether rows get a new order each epoch. buffer_rows: rows of the shuffling buffer;
    None for as many as fit in 256 MB. transform: from columns to columns, for each row group.
    sizes: lengths of sparse vectors. If an epoch's last rows do not fill a batch, the next epoch's
    first rows join them; only the very last batch may be smaller. cache: keep all rows of the shard
    in memory. read_ahead: whether a thread reads the next row group.

    Raises ValueError if there are no rows for this shard. While it is read, raises ValueError if
    `transform` leaves none of them, and for a column whose rows differ in shape.
    """

    def __init__(
        self,
        folder: str,
        columns: Sequence[str] | None,
        batch_size: int,
        *,
        shard: int = 0,
        count: int = 1,
        epochs: int | None = 1,
        shuffle: bool = True,
        seed: int | None = None,
        buffer_rows: int | None = None,
        transform: Callable[[Columns], Columns] | None = None,
        sizes: Mapping[str, int] | None = None,
        cache: bool = False,
        read_ahead: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder, self._shard = folder, shard
        groups = row_groups(folder, storage_options)
        self.total_rows = sum(group.rows for group in groups)
        deal_seed = (0 if seed is None else seed) if shuffle else None
        self._pieces = deal(groups, shard, count, deal_seed)
        self.rows = sum(piece.rows for piece in self._pieces)
        if not self.rows:
            raise ValueError(
                f"{folder} has {self.total_rows} row(s), which are too few for {count} ranks: "
                f"there are none for rank {shard}."
            )
        self._columns = None if columns is None else list(columns)
        self._batch_size, self._epochs = batch_size, epochs
        self._shuffle, self._buffer_rows = shuffle, buffer_rows
        self._random = np.random.default_rng(None if seed is None else [seed, shard])
        self._transform, self._sizes = transform, dict(sizes or {})
        self._cache: list[Columns] | None = [] if cache else None
        self._read_ahead = read_ahead

    def __iter__(self) -> Iterator[Columns]:
        return batches(self._all_epochs(), self._batch_size)

    def _all_epochs(self) -> Iterator[Columns]:
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            rows = 0
            for block in self._epoch():
                rows += _length(block)
                yield block
            if not rows:  # without this check, an endless reader would read on and give nothing
                raise ValueError(
                    f"transformation_fn left no rows for rank {self._shard}, which reads "
                    f"{self.rows} row(s) of {self._folder}: it must leave every rank at least one."
                )
            epoch += 1

    def _epoch(self) -> Iterator[Columns]:
        if self._cache is not None:
            if not self._cache:
                read = list(_checked(self._read(self._pieces)))
                if not read:
                    return
                self._cache = [_joined(read)]
            columns = self._cache[0]
            if self._shuffle:
                order = self._random.permutation(_length(columns))
                for start in range(0, len(order), 1024):
                    yield _taken(columns, order[start : start + 1024])
            else:
                yield columns
            return
        if not self._shuffle:
            yield from _checked(self._read(self._pieces))
            return
        order = self._random.permutation(len(self._pieces))
        yield from shuffled(
            _checked(self._read([self._pieces[index] for index in order])),
            self._random,
            self._buffer_rows,
            self.rows,
        )

    def _read(self, pieces: Sequence[Piece]) -> Iterator[Columns]:
        if not self._read_ahead:
            yield from map(self._load, pieces)
            return
        with ThreadPoolExecutor(1, "hvdtune-parquet") as thread:
            ahead = thread.submit(self._load, pieces[0])
            for following in [*pieces[1:], None]:
                loaded = ahead.result()
                if following is not None:
                    ahead = thread.submit(self._load, following)
                yield loaded
                del loaded

    def _load(self, piece: Piece) -> Columns:
        subset = piece.fragment.subset(row_group_ids=[piece.row_group])
        table = subset.to_table(columns=self._columns).slice(piece.start, piece.rows)
        columns = from_table(table, self._sizes)
        return self._transform(columns) if self._transform is not None else columns


def _checked(blocks: Iterator[Columns]) -> Iterator[Columns]:
    """The blocks that have rows. Raises ValueError if a column's rows differ in shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    for block in blocks:
        if not _length(block):
            continue  # its columns may have any shape
        for name, array in block.items():
            shape, own = shapes.setdefault(name, array.shape[1:]), array.shape[1:]
            if own != shape:
                raise ValueError(
                    f"column {name!r} has rows of shape {shape} and rows of shape {own}: all rows "
                    "must have the same shape."
                )
        yield block


def shuffled(
    blocks: Iterator[Columns],
    random: np.random.Generator,
    buffer_rows: int | None,
    rows: int,
    at_once: int = 1024,
) -> Iterator[Columns]:
    """The rows of all blocks in random order, drawn from a buffer of `buffer_rows` rows.

    A new row replaces one drawn at random, which is yielded; `at_once` rows at a time. With
    buffer_rows 0, only the rows within a block are shuffled. rows: how many to expect; the buffer
    is no larger. Blocks may have different types, but not rows of different shapes.
    """
    buffer: Columns = {}
    held = room = 0
    for block in blocks:
        order = random.permutation(_length(block))
        if not buffer and len(order):
            if buffer_rows is None:
                buffer_rows = max(1, DEFAULT_BUFFER // max(1, size_of_row(block)))
            room = min(buffer_rows, rows)
            # The operating system provides the memory only when it is written to.
            buffer = {name: np.empty((room, *a.shape[1:]), a.dtype) for name, a in block.items()}
        buffer = _widened(buffer, block, held)
        fill, rest = order[: room - held], order[room - held :]
        for name, array in buffer.items():
            array[held : held + len(fill)] = block[name][fill]
        held += len(fill)
        step = min(held, at_once) or at_once
        for start in range(0, len(rest), step):
            some = rest[start : start + step]
            if not room:
                yield _taken(block, some)
                continue
            slots = _distinct(random, held, len(some))
            drawn = _taken(buffer, slots)
            for name, array in buffer.items():
                array[slots] = block[name][some]
            yield drawn
    order = random.permutation(held)
    for start in range(0, held, at_once):
        yield _taken(buffer, order[start : start + at_once])


def _widened(buffer: Columns, block: Columns, held: int) -> Columns:
    """The buffer, of which `held` rows are in use, in types that can also hold the block's values.

    pandas, for example, makes a block's whole numbers floating-point numbers if a value is missing.
    """
    found = dict(buffer)
    for name, array in buffer.items():
        dtype = np.result_type(array.dtype, block[name].dtype)
        if dtype != array.dtype:
            found[name] = np.empty(array.shape, dtype)
            found[name][:held] = array[:held]
    return found


def _distinct(random: np.random.Generator, below: int, count: int) -> np.ndarray[Any, Any]:
    """`count` different numbers, drawn without generating all the others."""
    if count * 4 >= below:
        return random.permutation(below)[:count]
    found = np.unique(random.integers(below, size=count))
    while len(found) < count:
        found = np.unique(np.concatenate([found, random.integers(below, size=count - len(found))]))
    return random.permutation(found)


def batches(blocks: Iterator[Columns], size: int) -> Iterator[Columns]:
    """The same rows, `size` at a time; the last batch may be smaller."""
    waiting: list[Columns] = []
    have = 0
    for block in blocks:
        start, length = 0, _length(block)
        while have + length - start >= size:
            stop = start + size - have
            waiting.append(_sliced(block, start, stop))
            yield _joined(waiting)
            waiting, have, start = [], 0, stop
        if start < length:
            waiting.append(_sliced(block, start, length))
            have += length - start
    if have:
        yield _joined(waiting)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _taken(columns: Columns, places: Any) -> Columns:
    return {name: array[places] for name, array in columns.items()}


def _sliced(columns: Columns, start: int, stop: int) -> Columns:
    return {name: array[start:stop] for name, array in columns.items()}


def _joined(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
