"""Text and image classifiers from public model libraries, trained as a script for Horovod is.

`keras_classifiers.py bert` takes KerasHub's BERT, `keras_classifiers.py mobilenet` the MobileNet of
keras.applications, both small, with random weights and data made here. It runs on the backend that
KERAS_BACKEND names. What the ranks found goes into `found.json`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import horovod.keras as hvd
import keras
import numpy as np

ROWS, BATCH, EPOCHS, WORDS, LENGTH = 64, 8, 3, 40, 10


def bert() -> tuple[keras.Model, Any, np.ndarray]:
    """A classifier of texts that contain the word 5, or do not; texts and their classes."""
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=WORDS,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.0,
        max_sequence_length=LENGTH,
    )
    model = keras_hub.models.BertTextClassifier(
        backbone, num_classes=2, dropout=0.0, preprocessor=None
    )
    generator = np.random.default_rng(4)
    words = generator.integers(6, WORDS, (ROWS, LENGTH)).astype("int32")
    classes = generator.integers(0, 2, ROWS).astype("int32")
    words[classes == 1, 3] = 5
    inputs = {
        "token_ids": words,
        "segment_ids": np.zeros_like(words),
        "padding_mask": np.ones_like(words),
    }
    return model, inputs, classes


def mobilenet() -> tuple[keras.Model, Any, np.ndarray]:
    """A classifier of images that are bright on the left or on the right, and of such images."""
    model = keras.applications.MobileNet(
        input_shape=(32, 32, 3), alpha=0.25, weights=None, classes=2, classifier_activation=None
    )
    generator = np.random.default_rng(4)
    images = generator.normal(size=(ROWS, 32, 32, 3)).astype("float32")
    classes = generator.integers(0, 2, ROWS).astype("int32")
    for image, bright in zip(images, classes, strict=True):
        image[:, 16 * bright : 16 * bright + 16] += 1.0
    return model, images, classes


def mine(data: Any) -> Any:
    """Every size-th row, from this rank's number on."""
    if isinstance(data, dict):
        return {name: mine(rows) for name, rows in data.items()}
    return data[hvd.rank() :: hvd.size()]


def main(which: str) -> None:
    hvd.init()
    keras.utils.set_random_seed(100 + hvd.rank())  # ranks begin with weights of their own
    model, inputs, classes = {"bert": bert, "mobilenet": mobilenet}[which]()
    before = [float(np.abs(weights).sum()) for weights in model.get_weights()]
    rate = 0.003 * hvd.size()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2, verbose=0),
    ]
    if hvd.rank() == 0:
        callbacks.append(
            keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
        )
    history = model.fit(
        mine(inputs),
        mine(classes),
        batch_size=BATCH,
        epochs=EPOCHS,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    ).history
    found = {
        "rank": hvd.rank(),
        "backend": keras.backend.backend(),
        "before": before,
        "trained": [
            keras.ops.convert_to_numpy(variable).tolist() for variable in model.trainable_variables
        ],
        "history": {name: [float(one) for one in seen] for name, seen in history.items()},
    }
    every = hvd.allgather_object(found)
    if hvd.rank() == 0:
        with open("found.json", "w", encoding="utf-8") as file:
            json.dump(every, file)


if __name__ == "__main__":
    main(sys.argv[1])
