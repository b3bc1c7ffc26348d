"""A Keras model trained on a Spark DataFrame: handwritten digits.

    KERAS_BACKEND=torch python examples/spark/keras_digits.py --np 2

Any Keras backend works. In the DataFrame, the images are vectors of 64 numbers; the model takes
them as 8 × 8 pixels.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import keras
from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from sklearn.datasets import load_digits

from hvdtune.spark.common.backend import LocalBackend, SparkBackend
from hvdtune.spark.common.store import Store
from hvdtune.spark.keras import KerasEstimator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--store", help="folder or URL of the store (default: a temporary folder)")
    parser.add_argument(
        "--local", action="store_true", help="start ranks on the driver's machine, not in tasks"
    )
    args = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(f"local[{args.np}]").appName("digits").getOrCreate()
    pixels, labels = load_digits(return_X_y=True)
    rows = [
        (list(map(float, row / 16)), int(label)) for row, label in zip(pixels, labels, strict=True)
    ]
    df = spark.createDataFrame(rows, ["pixels", "digit"]).repartition(args.np)
    df = df.withColumn("pixels", array_to_vector(col("pixels")))
    train, test = df.randomSplit([0.8, 0.2], seed=1)

    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        model = KerasEstimator(
            backend=LocalBackend(args.np) if args.local else SparkBackend(args.np),
            store=Store.create(args.store or folder),
            model=net,
            optimizer=keras.optimizers.Adam(0.002),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            feature_cols=["pixels"],
            label_cols=["digit"],
            validation=0.1,
            batch_size=32,
            epochs=args.epochs,
            random_seed=1,
        ).fit(train)
    rows = model.transform(test).select("digit", "digit__output").collect()
    right = sum(row["digit"] == row["digit__output"].toArray().argmax() for row in rows)
    print(f"accuracy {right / len(rows):.3f} on {len(rows)} images")
    spark.stop()


if __name__ == "__main__":
    main()
