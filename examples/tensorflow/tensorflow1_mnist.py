"""A graph and a session, as in TensorFlow 1, on synthetic digits, with checkpoints.

hvdtune run -np 2 python <this file> --folder /tmp/digits; again with more --steps to continue.
"""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from digits import digits

v1 = tf.compat.v1


def logits_of(images: tf.Tensor) -> tf.Tensor:
    """A layer of 64 units, and one of 10."""
    flat = tf.reshape(images, (-1, 96))
    weights = v1.get_variable("hidden", (96, 64))
    bias = v1.get_variable("hidden_bias", (64,), initializer=v1.zeros_initializer())
    hidden = tf.nn.relu(flat @ weights + bias)
    return hidden @ v1.get_variable("output", (64, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="total steps of training")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank")
    parser.add_argument("--folder", help="where rank 0 keeps checkpoints (default: none)")
    arguments = parser.parse_args()
    hvd.init()

    with tf.Graph().as_default():
        images = v1.placeholder(tf.float32, (None, 12, 8, 1))
        labels = v1.placeholder(tf.int64, (None,))
        logits = logits_of(images)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.004 * hvd.size()))
        train = optimizer.minimize(loss, global_step=step)

        hooks = [
            # Also needed after restoring a checkpoint: only rank 0 has one.
            hvd.BroadcastGlobalVariablesHook(0),
            v1.train.StopAtStepHook(last_step=arguments.steps),
        ]
        generator = np.random.default_rng(hvd.rank())
        every_image, every_label = digits(4096, seed=1)
        test_images, test_labels = digits(512, seed=2)
        tested = {images: test_images, labels: test_labels}
        accuracy, steps = 0.0, 0
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=arguments.folder if hvd.rank() == 0 else None,
            hooks=hooks,
            save_checkpoint_steps=50,
            log_step_count_steps=None,
            save_summaries_steps=None,
            save_summaries_secs=None,
        ) as session:
            while not session.should_stop():
                own = generator.integers(0, len(every_label), arguments.batch_size)
                fed = {images: every_image[own], labels: every_label[own]}
                _, number = session.run([train, step], fed)
                steps += 1
                if hvd.rank() == 0 and number % 50 == 0:
                    accuracy = session.run_step_fn(
                        lambda step_context: step_context.session.run(right, tested)
                    )
                    print(f"step {number}: test accuracy {accuracy:.3f}", flush=True)
    if hvd.rank() == 0:
        print(f"{steps} steps; the last test accuracy was {accuracy:.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
