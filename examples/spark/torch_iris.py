"""A PyTorch model trained on a Spark DataFrame: iris species from four measurements.

    python examples/spark/torch_iris.py --np 2

The DataFrame is made here; on a cluster it would be read from tables. The estimator writes it to
the store, trains over the ranks, and returns a transformer for DataFrames.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.pipeline import Pipeline
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from sklearn.datasets import load_iris

from hvdtune.spark.common.backend import LocalBackend, SparkBackend
from hvdtune.spark.common.store import Store
from hvdtune.spark.torch import TorchEstimator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--store", help="folder or URL of the store (default: a temporary folder)")
    parser.add_argument(
        "--local", action="store_true", help="start ranks on the driver's machine, not in tasks"
    )
    args = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(f"local[{args.np}]").appName("iris").getOrCreate()
    iris = load_iris(as_frame=True).frame
    iris.columns = ["a", "b", "c", "d", "kind"]
    df = spark.createDataFrame(iris).repartition(args.np)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    with tempfile.TemporaryDirectory() as folder:
        estimator = TorchEstimator(
            backend=LocalBackend(args.np) if args.local else SparkBackend(args.np),
            store=Store.create(args.store or folder),
            model=net,
            optimizer=torch.optim.Adam(net.parameters(), lr=0.01),
            loss=torch.nn.CrossEntropyLoss(),
            feature_cols=["scaled"],
            label_cols=["kind"],
            validation=0.2,
            batch_size=8,
            epochs=args.epochs,
            random_seed=1,
        )
        pipeline = Pipeline(
            stages=[
                VectorAssembler(inputCols=["a", "b", "c", "d"], outputCol="measures"),
                StandardScaler(inputCol="measures", outputCol="scaled", withMean=True),
                estimator,
            ]
        )
        predictions = pipeline.fit(df).transform(df)
        best = udf(lambda scores: float(scores.toArray().argmax()), "double")
        found = predictions.withColumn("prediction", best("kind__output"))
        score = MulticlassClassificationEvaluator(labelCol="kind", metricName="accuracy")
        print(f"accuracy {score.evaluate(found):.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
