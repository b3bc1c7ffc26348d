"""A Gluon loop with DistributedTrainer, on synthetic digits: hvdtune run -np 2 python <this file>.

The numbered comments mark what makes it distributed.
"""

from __future__ import annotations

import argparse
import warnings

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from digits import digits, part_of_rank
from mxnet import autograd, gluon


def network() -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Conv2D(32, 3, activation="relu"),
        gluon.nn.Flatten(),
        gluon.nn.Dense(10),
    )
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument(
        "--num-groups", type=int, default=0, help="gradients are reduced in this many groups"
    )
    parser.add_argument("--save", help="file for the weights (.npz)")
    arguments = parser.parse_args()

    # 1. Join the job.
    hvd.init()
    if arguments.batch_size % hvd.size():
        parser.error(f"--batch-size must be divisible by the number of ranks, {hvd.size()}")

    # 2. Every rank takes its own part of each batch.
    own = arguments.batch_size // hvd.size()
    place = (arguments.batch_size, hvd.rank(), hvd.size())
    images, labels = (part_of_rank(rows, *place) for rows in digits(2048, seed=1))
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), own)

    mx.random.seed(hvd.rank() + 1)
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    # 3. All begin with the weights of rank 0; layers whose shape is not known yet get them in the
    # first forward pass.
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)

    # 4. The gradients are averaged over the ranks.
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = hvd.DistributedTrainer(parameters, "sgd", options, num_groups=arguments.num_groups)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(1, arguments.epochs + 1):
        total = mx.nd.zeros(1)
        for some, wanted in data:
            with autograd.record():
                loss = loss_of(net(some), wanted)
            loss.backward()
            trainer.step(own)
            total += loss.mean()
        # 5. Only one rank prints.
        mean = hvd.allreduce(total / len(data), name="loss").asscalar()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {mean:.4f}", flush=True)

    test_images, test_labels = digits(512, seed=2)
    right = net(mx.nd.array(test_images)).argmax(axis=1).asnumpy() == test_labels
    weights = [parameter.data().asnumpy() for parameter in parameters.values()]
    checksums = hvd.allgather_object(float(sum(abs(one).sum() for one in weights)))
    if hvd.rank() == 0:
        same = "identical" if len(set(checksums)) == 1 else "NOT identical"
        print(f"test accuracy {right.mean():.3f}; weights {same} on {hvd.size()} ranks")
        if arguments.save:
            np.savez(arguments.save, *weights)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "A NumPy version")
    main()
