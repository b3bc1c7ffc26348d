"""The cost of an estimator's data: reading a rank's share, and predictions for a DataFrame.

Reading: one process reads Parquet files as Spark writes them (scalars, and vectors as lists) in
shuffled batches. MB are those of the resulting arrays; "a core" divides by CPU time, including that
of Arrow's threads and the reading thread. Predictions: `TorchModel.transform` compared with the
same model called for each row, from an RDD of rows to a DataFrame, as Horovod does it. The model is
small and linear, so that moving the data takes most of the time. Both take turns; the ratio is the
median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000, help="to read (default: 1000)")
    parser.add_argument("--rows", type=int, default=400_000, help="to predict (default: 400000)")
    parser.add_argument("--parts", nargs="+", choices=["read", "transform"])
    args = parser.parse_args()
    parts = args.parts or ["read", "transform"]
    folder = Path(tempfile.mkdtemp(prefix="hvdtune-spark-data-"))
    try:
        if "read" in parts:
            read(folder, args.megabytes)
        if "transform" in parts:
            transform(folder, args.rows)
    finally:
        shutil.rmtree(folder)
    return 0


def read(folder: Path, megabytes: int) -> None:
    """Read 8 files with 8 row groups each, in batches of several sizes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hvdtune.spark.common.shards import ShardReader

    random = np.random.default_rng(0)
    files, groups, scalars, length = 8, 8, 20, 100
    rows = megabytes * 1_000_000 // (8 * (scalars + length)) // files
    data = folder / "data"
    data.mkdir()
    for number in range(files):
        columns: dict[str, Any] = {f"c{one}": random.normal(size=rows) for one in range(scalars)}
        flat = pa.array(random.normal(size=rows * length))
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * length)
        columns["v"] = pa.ListArray.from_arrays(offsets, flat)
        pq.write_table(
            pa.table(columns), data / f"part-{number}.parquet", row_group_size=-(-rows // groups),
            compression="snappy", use_dictionary=False,
        )  # fmt: skip
        del columns, flat
    group_mb = rows / groups * 8 * (scalars + length) / 1e6
    print(f"reading {megabytes} MB in row groups of {group_mb:.1f} MB; the buffer has 64 MB")
    print(f"{'batch':>6} {'shuffle':>8} {'MB/s':>7} {'MB/s a core':>12} {'memory MB':>10}")
    for batch, shuffle in ((4096, False), (4096, True), (256, True), (32, True)):
        buffer = 64_000_000 // (8 * (scalars + length))
        pa.default_memory_pool().release_unused()
        before, most, size = _resident(), 0.0, 0
        start, cpu = time.perf_counter(), _cpu()
        for count, one in enumerate(
            ShardReader(str(data), None, batch, shuffle=shuffle, seed=0, buffer_rows=buffer)
        ):
            size += sum(array.nbytes for array in one.values())
            if count % max(1, 40_000 // batch) == 0:
                most = max(most, _resident() - before)
        took, used = time.perf_counter() - start, _cpu() - cpu
        print(
            f"{batch:>6} {shuffle!s:>8} {size / took / 1e6:>7.0f} {size / used / 1e6:>12.0f} "
            f"{most:>10.0f}"
        )


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _resident() -> float:
    """MB of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def transform(folder: Path, rows: int) -> None:
    """Rows a second, with two tasks."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import torch
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, StructField, StructType

    from hvdtune.spark.torch import TorchModel

    torch.set_num_threads(1)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    df = spark.range(0, rows, 1, 2).select(
        array_to_vector(F.array(*(F.rand(one) for one in range(10)))).alias("x"),
        F.rand(11).alias("y"),
    )
    model = torch.nn.Linear(10, 1)

    def per_row(part: Any) -> Any:
        for row in part:
            with torch.no_grad():
                got = model(torch.tensor(row["x"].toArray(), dtype=torch.float32).reshape(-1, 10))
            yield (*row, got.item())

    told = {"y": {"spark_data_type": "double", "outputs": 1}}  # as after fit()
    ours = TorchModel(model=model, feature_columns=["x"], label_columns=["y"], _metadata=told)

    def batches(frame: Any) -> None:
        ours.transform(frame).agg(F.sum("y__output")).collect()

    def by_row(frame: Any) -> None:
        schema = StructType([*frame.schema.fields, StructField("y__output", DoubleType())])
        predicted = spark.createDataFrame(frame.rdd.mapPartitions(per_row), schema)
        predicted.agg(F.sum("y__output")).collect()

    kinds = (("batches", batches, rows), ("each row", by_row, rows // 8))
    parts = {}
    for name, work, count in kinds:
        parts[name] = df.limit(count).repartition(2).cache()
        parts[name].count()
        work(parts[name])  # starts a Python worker for each task
    speeds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(3):
        for name, work, count in kinds:
            start = time.perf_counter()
            work(parts[name])
            speeds[name].append(count / (time.perf_counter() - start))
    for name, found in speeds.items():
        print(f"transform, {name}: {statistics.median(found):,.0f} rows/s")
    ratios = [fast / slow for fast, slow in zip(*speeds.values(), strict=True)]
    print(f"batches are {statistics.median(ratios):.1f} times as fast")
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
