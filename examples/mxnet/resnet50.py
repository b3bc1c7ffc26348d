"""ResNet-50 from Gluon's model zoo on synthetic pictures: hvdtune run -np 2 python <this file>.

The numbered comments mark what makes it distributed.
"""

from __future__ import annotations

import argparse
import time

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from digits import part_of_rank
from mxnet import autograd, gluon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50_v1", help="of mxnet.gluon.model_zoo.vision")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8, help="of all ranks together")
    parser.add_argument("--pixels", type=int, default=64, help="height and width of a picture")
    parser.add_argument("--half", action="store_true", help="send gradients as float16")
    parser.add_argument(
        "--fixed-statistics",
        action="store_true",
        help="batch normalisation with stored statistics; weights are equal for any number of "
        "ranks if MXNET_MKLDNN_ENABLED=0 (oneDNN's gradients differ from run to run)",
    )
    parser.add_argument("--save", help="file for the weights (.npz)")
    arguments = parser.parse_args()

    # 1. Join the job.
    hvd.init()
    if arguments.batch_size % hvd.size():
        parser.error(f"--batch-size must be divisible by the number of ranks, {hvd.size()}")

    # 2. Every rank takes its own part of each batch.
    own = arguments.batch_size // hvd.size()
    random = np.random.default_rng(1)
    count = arguments.steps * arguments.batch_size
    images = random.normal(size=(count, 3, arguments.pixels, arguments.pixels)).astype(np.float32)
    labels = random.integers(0, 10, count).astype(np.float32)
    place = (arguments.batch_size, hvd.rank(), hvd.size())
    images, labels = (part_of_rank(rows, *place) for rows in (images, labels))

    mx.random.seed(hvd.rank() + 1)
    net = gluon.model_zoo.vision.get_model(arguments.model, classes=10)
    net.initialize(mx.init.MSRAPrelu())
    net.hybridize(static_alloc=True)
    # 3. All begin with the weights of rank 0.
    net(mx.nd.zeros((1, 3, arguments.pixels, arguments.pixels)))
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)

    # 4. The gradients are averaged over the ranks.
    trainer = hvd.DistributedTrainer(
        parameters,
        "nag",
        {"learning_rate": 1e-3, "momentum": 0.9, "wd": 1e-4},
        compression=hvd.Compression.fp16 if arguments.half else hvd.Compression.none,
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    begin = time.monotonic()
    for step in range(arguments.steps):
        rows = slice(step * own, (step + 1) * own)
        trains = not arguments.fixed_statistics
        with autograd.record(train_mode=trains):
            loss = loss_of(net(mx.nd.array(images[rows])), mx.nd.array(labels[rows]))
        loss.backward(train_mode=trains)
        trainer.step(own)
    mean = hvd.allreduce(loss.mean(), name="loss").asscalar()
    # 5. Only one rank prints.
    if hvd.rank() == 0:
        speed = count / (time.monotonic() - begin)
        print(f"{arguments.model}: last loss {mean:.4f}; {speed:.1f} pictures/s")
        if arguments.save:
            names = sorted(parameters.keys())
            np.savez(arguments.save, *(parameters[name].data().asnumpy() for name in names))


if __name__ == "__main__":
    main()
