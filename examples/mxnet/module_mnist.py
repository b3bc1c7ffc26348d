"""`Module.fit` with DistributedOptimizer, synthetic digits: hvdtune run -np 2 python <this file>.

The numbered comments mark what makes it distributed.
"""

from __future__ import annotations

import argparse

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from digits import digits, part_of_rank


def network() -> mx.sym.Symbol:
    found = mx.sym.Flatten(mx.sym.var("data"))
    found = mx.sym.FullyConnected(found, num_hidden=64, name="hidden")
    found = mx.sym.Activation(found, act_type="relu")
    found = mx.sym.FullyConnected(found, num_hidden=10, name="output")
    return mx.sym.SoftmaxOutput(found, name="softmax")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
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
    data = mx.io.NDArrayIter(images, labels, own)

    mx.random.seed(hvd.rank() + 1)
    module = mx.mod.Module(network(), context=mx.cpu())
    module.bind(data_shapes=data.provide_data, label_shapes=data.provide_label)
    module.init_params(mx.init.Xavier())
    # 3. All begin with the weights of rank 0.
    weights, states = module.get_params()
    hvd.broadcast_parameters(weights, root_rank=0)
    hvd.broadcast_parameters(states, root_rank=0)
    module.set_params(weights, states)

    # 4. The gradients are averaged over the ranks; no kvstore updates anything.
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, rescale_grad=1.0 / own)
    module.fit(
        data,
        kvstore=None,
        optimizer=hvd.DistributedOptimizer(optimizer),
        num_epoch=arguments.epochs,
    )

    test = mx.io.NDArrayIter(*digits(512, seed=2), own)
    [(_, accuracy)] = module.score(test, mx.metric.Accuracy())
    weights, _ = module.get_params()
    checksums = hvd.allgather_object(float(sum(abs(w.asnumpy()).sum() for w in weights.values())))
    # 5. Only one rank prints.
    if hvd.rank() == 0:
        same = "identical" if len(set(checksums)) == 1 else "NOT identical"
        print(f"test accuracy {accuracy:.3f}; weights {same} on {hvd.size()} ranks")
        if arguments.save:
            np.savez(arguments.save, *(weights[name].asnumpy() for name in sorted(weights)))


if __name__ == "__main__":
    main()
