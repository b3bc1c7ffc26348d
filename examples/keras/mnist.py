"""Trains a Keras model on digits with several processes, on any backend.

    KERAS_BACKEND=torch hvdtune run -np 2 python examples/keras/mnist.py

The digits are drawn in a 7-segment font with noise, so nothing is downloaded.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import hvdtune.keras as hvd

# The segments of each digit: top, upper left, upper right, middle, lower left, lower right, bottom.
SEGMENTS = ("1110111", "0010010", "1011101", "1011011", "0111010")
SEGMENTS += ("1101011", "1101111", "1010010", "1111111", "1111011")
PLACES = ((4, slice(8, 20)), (slice(4, 14), 8), (slice(4, 14), 19), (13, slice(8, 20)))
PLACES += ((slice(14, 24), 8), (slice(14, 24), 19), (23, slice(8, 20)))


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 28, 28, 1), float32, and their digits, int32."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, count).astype("int32")
    images = generator.normal(0.0, 0.4, (count, 28, 28)).astype("float32")
    for image, label in zip(images, labels, strict=True):
        for lit, place in zip(SEGMENTS[label], PLACES, strict=True):
            if lit == "1":
                image[place] += 1.0
    moves = generator.integers(-2, 3, (count, 2))
    images = np.stack(
        [np.roll(image, tuple(move), (0, 1)) for image, move in zip(images, moves, strict=True)]
    )
    return images[..., None], labels


def main() -> None:
    """Train, and print rank 0's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2048, help="of all ranks together")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    arguments = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # ranks differ in dropout; weights are made equal
    images, labels = digits(arguments.rows, seed=1)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    whole = len(images) // arguments.batch_size * arguments.batch_size
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(8, 5, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    rate = 0.002 * hvd.size()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images[:whole],
        labels[:whole],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    found = model.evaluate(*digits(512, seed=2), verbose=0, return_dict=True)
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s), {keras.backend.backend()}: accuracy {found['accuracy']:.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
