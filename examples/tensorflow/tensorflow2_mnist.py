"""A custom loop in TensorFlow 2, on synthetic digits: hvdtune run -np 2 python <this file>.

The numbered comments mark what makes it distributed.
"""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from digits import digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="of all ranks together")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank")
    arguments = parser.parse_args()

    # 1. Join the job, and use the GPU with this rank's number, if there are GPUs.
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    # 2. Every rank takes its own part of the data.
    images, labels = digits(4096, seed=1)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(hvd.size(), hvd.rank())
    dataset = dataset.repeat().shuffle(2048, seed=hvd.rank()).batch(arguments.batch_size)

    model = keras.Sequential(
        [
            keras.Input((12, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    # 3. n ranks see n times as many samples per step.
    optimizer = keras.optimizers.SGD(0.02 * hvd.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # 4. All begin with the weights of rank 0.
    hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        # 5. The gradients are averaged over the ranks.
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    steps = max(1, arguments.steps // hvd.size())
    for number, (some, wanted) in enumerate(dataset.take(steps), 1):
        loss = step(some, wanted)
        # 6. Only one rank prints.
        if hvd.rank() == 0 and number % 10 == 0:
            print(f"step {number}: loss {float(loss):.3f}", flush=True)

    images, labels = digits(512, seed=2)
    right = tf.argmax(model(images), axis=1).numpy() == labels
    checksums = hvd.allgather_object(float(sum(abs(w).sum() for w in model.get_weights())))
    if hvd.rank() == 0:
        same = "identical" if len(set(checksums)) == 1 else "NOT identical"
        print(f"test accuracy {right.mean():.3f}; weights {same} on {hvd.size()} ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
