"""A program with a session of Spark Connect: `python -m rank_programs.spark_connect SETTINGS`."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from typing import Any

from rank_programs import spark_jobs


def message(*args: Any, **kwargs: Any) -> str:
    """What `horovod.spark.run` raises."""
    import horovod.spark

    try:
        horovod.spark.run(*args, **kwargs)
    except RuntimeError as error:
        return str(error)
    return ""


def refusal(module: str) -> str:
    """What importing a module raises."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def estimate(session: Any, folder: str) -> dict[str, Any]:
    """What an estimator learns of y = 2x, and the types of the columns that its model adds to."""
    import torch
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    from hvdtune.spark.common.store import Store
    from hvdtune.spark.torch import TorchEstimator, TorchModel

    numbers = session.range(0, 40, 1, 2).select((F.col("id") / 40).alias("x"))
    data = numbers.select(array_to_vector(F.array("x")).alias("x"), (2 * F.col("x")).alias("y"))
    net = torch.nn.Linear(1, 1)
    model = TorchEstimator(
        num_proc=1, store=Store.create(folder), model=net, loss=torch.nn.MSELoss(),
        optimizer=torch.optim.SGD(net.parameters(), lr=0.5), feature_cols=["x"],
        label_cols=["y"], batch_size=10, epochs=5, verbose=0, random_seed=0,
    ).fit(data)  # fmt: skip
    model.save(f"{folder}/model")
    out = TorchModel.load(f"{folder}/model").transform(data)
    return {
        "losses": [one["train"]["loss"] for one in model.getHistory()],
        "schema": out.schema.simpleString(),
        "errors": [abs(row["y__output"] - row["y"]) for row in out.collect()],
    }


def main() -> None:
    """Print what was found as JSON."""
    import horovod.spark
    from pyspark.sql import SparkSession

    from hvdtune.spark import cluster
    from hvdtune.spark import run as cluster_run

    builder = SparkSession.builder.remote("local[2]")
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    out, err = io.StringIO(), io.StringIO()
    found = {
        "classic": isinstance(cluster.active(), cluster.Classic),
        "results": horovod.spark.run(spark_jobs.allreduce, (1.0,), stdout=out, stderr=err),
        "failure": message(spark_jobs.end_badly, ("exit",), num_proc=2, stdout=err, stderr=err),
        "too few": message(spark_jobs.allreduce, (1.0,), num_proc=3, stderr=err),
        "count": session.range(10).count(),
        "output": sorted(out.getvalue().splitlines()),
        "refused": refusal("horovod.spark.driver.driver_service"),
        "estimate": estimate(session, os.path.abspath("store")),
        "alias": horovod.spark.run is cluster_run,
    }
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
