"""Stores, and what an estimator's ranks read from them; no Spark is started."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")  # hvdtune.spark needs it
pytest.importorskip("fsspec")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from hvdtune.spark.common.columns import Columns, from_table, transformed
from hvdtune.spark.common.datamodule import DataModule, ParquetDataModule
from hvdtune.spark.common.plan import rows_of
from hvdtune.spark.common.shards import ShardReader, deal, row_groups, shuffled
from hvdtune.spark.common.store import (
    DBFSLocalStore,
    FilesystemStore,
    HDFSStore,
    LocalStore,
    Store,
)
from hvdtune.spark.common.util import check_shape_compatibility

# ---- S6: stores ----


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("hdfs://namenode:8020/user/me", HDFSStore),
        ("hdfs:///user/me", HDFSStore),
        ("/dbfs/me", DBFSLocalStore),
        ("dbfs:/me", DBFSLocalStore),
        ("file:///dbfs/me", DBFSLocalStore),
        ("/tmp/dbfs", FilesystemStore),
        ("file:///tmp/me", FilesystemStore),
        ("memory://me", FilesystemStore),
    ],
)
def test_create_chooses_by_prefix(prefix: str, kind: type):
    assert type(Store.create(prefix)) is kind


@pytest.mark.parametrize("protocol", ["", "file://"])
def test_paths_below_a_folder(tmp_path: Path, protocol: str):
    store = Store.create(f"{protocol}{tmp_path}/store/")
    root = f"file://{tmp_path}/store"
    assert store.get_train_data_path() == f"{root}/intermediate_train_data"
    assert store.get_train_data_path(3) == f"{root}/intermediate_train_data.3"
    assert store.get_val_data_path(0) == f"{root}/intermediate_val_data.0"
    assert store.get_test_data_path() == f"{root}/intermediate_test_data"
    assert store.get_runs_path() == f"{root}/runs"
    assert store.get_run_path("r") == f"{root}/runs/r"
    assert store.get_checkpoint_path("r") == f"{root}/runs/r/checkpoint"
    assert store.get_logs_path("r") == f"{root}/runs/r/logs"
    assert (store.get_checkpoint_filename(), store.get_logs_subdir()) == ("checkpoint", "logs")
    assert store.saving_runs()
    assert store.get_localized_path(f"{root}/x") == f"{tmp_path}/store/x"


def test_other_places_and_runs_that_are_not_kept(tmp_path: Path):
    store = Store.create(
        str(tmp_path), train_path="/a", val_path="file:///b", runs_path="/c", save_runs=False
    )
    assert store.get_train_data_path(1) == "file:///a.1"
    assert store.get_val_data_path() == "file:///b"
    assert store.get_run_path("r") == "file:///c/r"
    assert store.get_checkpoint_path("r") is None
    assert store.get_logs_path("r") is None
    assert not store.to_remote("r", 0).saving_runs


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_files_of_a_store(where: str, tmp_path: Path):
    prefix = str(tmp_path / "store") if where == "folder" else f"memory://{tmp_path.name}"
    store = Store.create(prefix)
    path = f"{store.prefix_path}/below/text"
    assert not store.exists(path)
    store.write_text(path, "grüße")
    assert store.exists(path)
    assert store.read(path).decode() == "grüße"
    table = pa.table({"a": [1, 2]})
    folder = store.get_train_data_path(0)
    assert not store.is_parquet_dataset(folder)
    store.fs.makedirs(store.get_localized_path(folder))
    with store.fs.open(f"{store.get_localized_path(folder)}/part.parquet", "wb") as file:
        pq.write_table(table, file)
    assert store.is_parquet_dataset(folder)
    assert store.get_parquet_dataset(folder).read().equals(table)

    remote = pickle.loads(cloudpickle.dumps(store.to_remote("r", 0)))
    with remote.get_local_output_dir() as local:
        (Path(local) / "checkpoint").mkdir()
        for name in ("b.ckpt", "a.ckpt", "note"):
            (Path(local) / "checkpoint" / name).write_text(name)
        remote.sync(local)
        is_own = Path(local) == tmp_path / "store" / "runs" / "r"
    assert is_own == (where == "folder")
    assert Path(local).exists() == is_own
    names = [name.rpartition("/")[2] for name in store.get_checkpoints("r")]
    assert names == ["a.ckpt", "b.ckpt"]
    assert store.get_checkpoints("other") == []


def test_local_store_is_the_old_name(tmp_path: Path):
    with pytest.warns(DeprecationWarning, match="FilesystemStore"):
        store = LocalStore(str(tmp_path))
    assert isinstance(store, FilesystemStore)


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="nonsense://x"):
        Store.create("nonsense://x")
    with pytest.raises(TypeError, match="prefix_paths"):
        Store.create("/tmp", prefix_paths=1)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("dbfs:/a/b", "/dbfs/a/b"),
        ("dbfs:///a", "/dbfs/a"),
        ("file:///dbfs/a", "/dbfs/a"),
        ("/dbfs/a", "/dbfs/a"),
        ("/dbfs", "/dbfs"),
    ],
)
def test_paths_on_databricks(path: str, normal: str):
    assert DBFSLocalStore.normalize_path(path) == normal
    assert DBFSLocalStore.matches(path)


def test_databricks_store(monkeypatch: pytest.MonkeyPatch):
    store = DBFSLocalStore("dbfs:/a")
    assert store.get_train_data_path(1) == "file:///dbfs/a/intermediate_train_data.1"
    assert store.get_checkpoint_path("r") == "file:///dbfs/a/runs/r/checkpoint.tf"
    assert not DBFSLocalStore.matches("/dbfs_other/a")
    with pytest.raises(ValueError, match="dbfs:/"):
        DBFSLocalStore.normalize_path("s3://a")
    # It waits for files that the mount does not show yet, but not for ever.
    monkeypatch.setenv("DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS", "0.2")
    monkeypatch.setenv("DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS", "0.01")
    looks = []
    monkeypatch.setattr(DBFSLocalStore, "exists", lambda self, path: looks.append(path))
    assert not store.is_parquet_dataset("/dbfs/a/nothing")
    assert len(looks) > 1


@pytest.mark.parametrize(
    ("url", "prefix", "path"),
    [
        ("hdfs://namenode01:8020/user/out", "hdfs://namenode01:8020", "/user/out"),
        ("hdfs://nameservice/user/out", "hdfs://nameservice", "/user/out"),
        ("hdfs:///user/out", "hdfs://", "/user/out"),
        ("/user/out", "hdfs://", "/user/out"),
    ],
)
def test_urls_of_hdfs(url: str, prefix: str, path: str):
    store = HDFSStore(url)
    assert store.path_prefix() == prefix
    assert store.get_full_path(path) == f"{prefix}{path}"
    assert store.get_localized_path(f"{prefix}{path}") == path
    assert store.get_train_data_path() == f"{prefix}{path}/intermediate_train_data"
    assert not store.is_local()


def test_hdfs_arguments(monkeypatch: pytest.MonkeyPatch):
    assert HDFSStore("/a", host="n", port=1).get_full_path("/a") == "hdfs://n:1/a"
    for url in ("namenode:8020/user", "hdfs:/a", "hdfs://only-a-host", "a/b"):
        with pytest.raises(ValueError, match="not a path on HDFS"):
            HDFSStore(url)
    with pytest.raises(ValueError, match=r"'n'.*'m'"):
        HDFSStore("hdfs://n:1/a", host="m")
    asked = []
    monkeypatch.setattr(fsspec, "filesystem", lambda *a, **k: asked.append((a, k)))
    store = pickle.loads(pickle.dumps(HDFSStore("hdfs://n:1/a", user="me", kerb_ticket="/t")))
    assert store.fs is None
    assert asked == [(("hdfs",), {"host": "n", "port": 1, "user": "me", "kerb_ticket": "/t"})]


# ---- S5: every row once, shares alike, bounded memory ----


def write(folder: Path, rows: list[int], group: int = 7) -> int:
    """Files of so many rows each, in row groups of `group`; how many rows in all."""
    folder.mkdir(parents=True)
    first = 0
    for number, count in enumerate(rows):
        ids = np.arange(first, first + count)
        values = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids * 1.0, 3)), 3)
        table = pa.table({"id": ids, "v": values, "l": values.cast(pa.list_(pa.float64()))})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group)
        first += count
    return first


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_every_row_once_an_epoch(tmp_path: Path, count: int, shuffle: bool):
    total = write(tmp_path / "data", [30, 0, 1, 22, 40])
    seen: Counter[int] = Counter()
    shares = []
    for shard in range(count):
        reader = ShardReader(
            str(tmp_path / "data"), ["id"], 4, shard=shard, count=count, epochs=3, shuffle=shuffle,
            seed=1, buffer_rows=10,
        )  # fmt: skip
        ids = np.concatenate([batch["id"] for batch in reader])
        shares.append(reader.rows)
        assert len(ids) == 3 * reader.rows
        epochs = ids.reshape(3, reader.rows)
        for epoch in epochs:
            assert sorted(epoch) == sorted(epochs[0])  # an epoch has each row once
        if shuffle and reader.rows > 10:
            assert any((epochs[0] != epoch).any() for epoch in epochs[1:])
        seen.update(epochs[0].tolist())
    assert seen == Counter(range(total))
    assert max(shares) - min(shares) <= 1


def test_batches_have_all_columns_and_the_same_rows(tmp_path: Path):
    total = write(tmp_path / "data", [50, 20])
    reader = ShardReader(str(tmp_path / "data"), ["id", "v", "l"], 16, seed=0, buffer_rows=30)
    sizes = []
    for batch in reader:
        sizes.append(len(batch["id"]))
        for name in ("v", "l"):
            assert (batch[name] == batch["id"][:, None] * np.ones(3)).all()
    assert sizes == [16] * (total // 16) + [total % 16]


def test_the_same_seed_gives_the_same_order(tmp_path: Path):
    write(tmp_path / "data", [50])

    def order(seed: int | None) -> list[int]:
        reader = ShardReader(str(tmp_path / "data"), ["id"], 50, seed=seed)
        return [int(one) for batch in reader for one in batch["id"]]

    assert order(1) == order(1) != order(2)
    assert order(None) != order(None)


def test_shuffling_spreads_rows():
    """Rows leave at random times, not soon after they have come."""
    blocks = ({"id": np.arange(start, start + 100)} for start in range(0, 10_000, 100))
    parts = shuffled(blocks, np.random.default_rng(0), 4_000, 10_000, at_once=50)
    ids = np.concatenate([part["id"] for part in parts])
    assert sorted(ids) == list(range(10_000))
    places = np.empty(10_000)
    places[ids] = np.arange(10_000)
    moved = places - np.arange(10_000)
    assert np.std(moved) > 2_000  # of a perfect shuffle it would be about 4000
    # The mean place of a block's rows is not their order.
    assert abs(np.corrcoef(ids, np.arange(10_000))[0, 1]) < 0.9


def test_memory_is_two_row_groups_and_the_buffer(tmp_path: Path):
    (tmp_path / "data").mkdir()
    rows, groups = 20_000, 30
    writer = None
    for number in range(groups):
        table = pa.table({f"c{c}": np.full(rows, number * 1.0) for c in range(10)})
        writer = writer or pq.ParquetWriter(tmp_path / "data" / "p.parquet", table.schema)
        writer.write_table(table, row_group_size=rows)
    writer.close()
    group_bytes = rows * 10 * 8
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for batch in ShardReader(str(tmp_path / "data"), None, 500, seed=0, buffer_rows=5_000):
        most = max(most, pa.total_allocated_bytes() - before)
        seen += len(batch["c0"])
    assert seen == rows * groups
    assert most <= 3.5 * group_bytes, (most, group_bytes)  # two, and what decoding one needs


def test_cached_rows_are_read_once(tmp_path: Path):
    total = write(tmp_path / "data", [40])
    reader = ShardReader(str(tmp_path / "data"), ["id"], total, epochs=3, seed=0, cache=True)
    loads = []
    load = reader._load
    reader._load = lambda piece: loads.append(piece) or load(piece)  # type: ignore[method-assign]
    epochs = [batch["id"].tolist() for batch in reader]
    assert [sorted(epoch) for epoch in epochs] == [list(range(total))] * 3
    assert epochs[0] != epochs[1]
    assert len(loads) == 6


def test_shuffling_keeps_values_of_all_types():
    blocks = [
        {"x": np.array([1, 2]), "t": np.array(["a", "b"])},
        {"x": np.array([2.5, np.nan]), "t": np.array(["long", "longer"])},
    ]
    for buffer_rows in (0, 1, 4):
        found = list(shuffled(iter(blocks), np.random.default_rng(0), buffer_rows, 4, 4))
        x = np.concatenate([part["x"] for part in found])
        assert sorted(x[~np.isnan(x)].tolist()) == [1, 2, 2.5]
        assert len(x) == 4
        texts = [text for part in found for text in part["t"].tolist()]
        assert sorted(texts) == ["a", "b", "long", "longer"]


@pytest.mark.parametrize("more", [{}, {"shuffle": False}, {"cache": True}])
def test_row_groups_with_rows_of_other_shapes(tmp_path: Path, more: dict[str, bool]):
    for number, length in enumerate((3, 1)):
        table = pa.table({"id": [number] * 4, "l": [[1.0] * length] * 4})
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "data" / f"part-{number}.parquet")
    reader = ShardReader(str(tmp_path / "data"), None, 4, seed=0, **more)
    with pytest.raises(ValueError, match=r"'l' has rows of shape \(\d,\) and rows of shape \(\d,"):
        list(reader)


@pytest.mark.parametrize("more", [{}, {"shuffle": False}, {"cache": True}])
def test_rows_that_a_transformation_drops(tmp_path: Path, more: dict[str, bool]):
    write(tmp_path / "data", [30])

    def read(below: int) -> list[Columns]:
        def keep(columns: Columns) -> Columns:
            return transformed(columns, lambda frame: frame[frame["id"] < below])

        folder = str(tmp_path / "data")
        return list(ShardReader(folder, None, 4, epochs=2, seed=0, transform=keep, **more))

    found = read(10)  # of five row groups, three are empty then
    assert sorted(np.concatenate([part["id"] for part in found])) == sorted([*range(10)] * 2)
    assert {part["v"].shape[1:] for part in found} == {(3,)}
    with pytest.raises(ValueError, match=r"left no rows for rank 0, which reads 30 row\(s\) of /"):
        read(0)


def test_more_ranks_than_rows(tmp_path: Path):
    write(tmp_path / "data", [2])
    with pytest.raises(ValueError, match=r"2 row\(s\).*3 ranks.*rank 0"):
        ShardReader(str(tmp_path / "data"), ["id"], 1, shard=0, count=3)
    assert deal([], 0, 2) == []
    assert sum(piece.rows for piece in row_groups(f"file://{tmp_path}/data")) == 2


def test_any_file_system(tmp_path: Path):
    write(tmp_path / "data", [9])
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "data"), f"/{tmp_path.name}", recursive=True)
    reader = ShardReader(f"memory://{tmp_path.name}", ["id"], 9, shuffle=False)
    assert [batch["id"].tolist() for batch in reader] == [list(range(9))]


# ---- columns ----


def test_kinds_of_columns():
    import decimal

    vectors = pa.array(
        [
            {"type": 0, "size": 4, "indices": [1, 3], "values": [5.0, 6.0]},
            {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0, 4.0]},
            {"type": 0, "size": 4, "indices": [], "values": []},
        ],
        pa.struct(
            [
                ("type", pa.int8()),
                ("size", pa.int32()),
                ("indices", pa.list_(pa.int32())),
                ("values", pa.list_(pa.float64())),
            ]
        ),
    )
    found = from_table(
        pa.table(
            {
                "vector": vectors,
                "matrix": [[[1, 2], [3, 4], [5, 6]]] * 3,
                "truth": [True, False, True],
                "text": ["a", "b", "c"],
                "decimal": [decimal.Decimal("1.5")] * 3,
            }
        )
    )
    assert found["vector"].tolist() == [[0, 5, 0, 6], [1, 2, 3, 4], [0, 0, 0, 0]]
    assert found["matrix"].shape == (3, 3, 2)
    assert found["truth"].dtype == bool
    assert found["text"].tolist() == ["a", "b", "c"]
    assert found["decimal"].tolist() == [1.5] * 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, None], "'x' has 1 missing value"),
        ([[1], [1, 2]], "'x' has arrays of 1 to 2 values"),
        ([{"a": 1}], "'x' is a struct"),
    ],
)
def test_columns_that_cannot_be_trained_with(values: list[object], words: str):
    with pytest.raises(ValueError, match=words):
        from_table(pa.table({"x": values}))


def test_shapes_of_batches_and_of_rows():
    batch = np.arange(24).reshape(2, 12)
    for shape, expected in (
        ([-1, 3, 4], (2, 3, 4)),
        ([None, 12], (2, 12)),
        ([1, 3, 4], (2, 3, 4)),
        ([64, 3, 4], (2, 3, 4)),  # a batch of another size
        ([3, 2, 2], (2, 3, 2, 2)),
        ([12], (2, 12)),
    ):
        assert rows_of(batch, shape).shape == expected
    assert rows_of(np.arange(2), [-1]).shape == (2,)
    assert rows_of(np.arange(2), [1]).shape == (2, 1)

    told = {"x": {"shape": 1}, "v": {"shape": 12}, "y": {"shape": 1}, "w": {"shape": 12}}
    good = {
        "input_shapes": [[1], [-1, 3, 4]],
        "output_shapes": [[1, 1], [-1, 2, 3, 2]],
        "label_shapes": [[1], [3, 2, 2]],
    }
    check_shape_compatibility(told, ["x", "v"], ["y", "w"], **good)
    for bad, words in (
        ({"input_shapes": [[1], [-1, 3, 5]]}, "'v' has 12 .* input_shapes .* has 15"),
        ({"input_shapes": [[2], [-1, 3, 4]]}, "'x' has 1 .* has 2"),
        ({"output_shapes": [[1], [7]], "label_shapes": None}, "'w' has 12 .* outputs .* has 7"),
        ({"label_shapes": [[-1, 3, 4]]}, r"1 shape\(s\) for 2"),
    ):
        with pytest.raises(ValueError, match=words):
            check_shape_compatibility(told, ["x", "v"], ["y", "w"], **{**good, **bad})


def test_transformations():
    columns = {"a": np.arange(3), "b": np.ones((3, 4))}

    def change(frame):
        frame["sum"] = frame["b"].map(lambda row: float(row.sum())) + frame["a"]
        frame["b"] = frame["b"].map(lambda row: row[:2])
        return frame[frame["a"] > 0]

    found = transformed(columns, change, [("b", np.float32, (2, 1), False)], ["a"])
    assert list(found) == ["b", "sum"]
    assert found["sum"].tolist() == [5.0, 6.0]
    assert (found["b"].shape, found["b"].dtype) == ((2, 2, 1), np.float32)
    with pytest.raises(ValueError, match="must return a pandas DataFrame, not list"):
        transformed(columns, lambda frame: [])
    with pytest.raises(ValueError, match=r"'c'.*gave a, b"):
        transformed(columns, lambda frame: frame, [("c", int, (), False)])


def test_data_module_is_an_interface(tmp_path: Path):
    with pytest.raises(TypeError, match="abstract"):
        DataModule("a", "b")  # type: ignore[abstract]
    write(tmp_path / "data", [10])
    with ParquetDataModule(
        str(tmp_path / "data"), str(tmp_path / "data"), train_batch_size=5, val_batch_size=3,
        schema_fields=["id"], cur_shard=1, shard_count=2, random_seed=0, steps_per_epoch_train=1,
        transform_fn=lambda frame: frame.assign(id=frame["id"] + 100),
    ) as data:  # fmt: skip
        train, val = iter(data.train_data()), iter(data.val_data())
        twice = [sorted(next(train)["id"].tolist()) for _ in range(2)]
        assert twice[0] == twice[1]  # without an end
        assert next(val)["id"].tolist() == [105, 106, 107]
    assert json.dumps(data.short_name) == '"parquet"'


def test_what_public_code_imports():
    program = (
        "import generate_compatibility as generator\n"
        "for statement in generator.public_imports_table.SPARK:\n"
        "    assert generator.outcome(statement) == 'works', statement\n"
    )
    docs = Path(__file__).parents[2] / "docs"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=docs, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
