"""One step's gradients in a `tf.function`: hvdtune, hvdtune.torch and TensorFlow's own.

Each round times, in this order or one that begins elsewhere, a step that reduces the gradients of a
model (ResNet-50 unless `--model` says another) as

  hvdtune               one grouped allreduce in a tf.function, as DistributedGradientTape makes it
  hvdtune, one by one   an allreduce for each tensor, all in one tf.function
  hvdtune.torch         the same tensors in place, by hvdtune.torch's grouped_allreduce_
  TensorFlow            MultiWorkerMirroredStrategy's all_reduce (gRPC, ring), in a tf.function

The step takes as long as on the slowest rank. Then single calls with 4 floats: in eager mode beside
TensorFlow's own addition, and in a chain of 100 in a tf.function.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import ranks

from hvdtune.bench.workloads.gradient_sets import WORKLOADS

CHAIN = 100


def main() -> int:
    """Measure; with `--worker`, be one rank."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--model", default="resnet50", help="gradient set (default: resnet50)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds (default: 8)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default: 1)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    found = ranks.measure(__file__, args.np, ranks.forwarded(args, "model", "rounds", "seconds"))
    print(f"{args.model}, np {args.np}, {args.rounds} rounds")
    own = ranks.median(found["hvdtune"])
    for name in ("hvdtune", "hvdtune, one by one", "hvdtune.torch", "TensorFlow"):
        each = ranks.median(found[name])
        print(f"  {name:<20} {each * 1e3:8.2f} ms a step, {each / own:5.2f} x hvdtune's")
    for name in ("eager allreduce", "eager add", "grouped, a tensor", "chain, a call", "chain add"):
        print(f"  {name:<20} {ranks.median(found[name]) * 1e6:8.1f} us")
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    workers = [f"127.0.0.1:{port + number}" for number in range(size)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )
    import tensorflow as tf
    import torch

    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )
    import hvdtune
    import hvdtune.tensorflow as hvd
    import hvdtune.torch
    from hvdtune.tensorflow import mpi_ops

    hvd.init()
    torch.set_num_threads(1)
    shapes = [shape for _, shape in WORKLOADS[args.model].backward_order()]
    gradients = [tf.ones(shape) for shape in shapes]
    tensors = [torch.ones(shape) for shape in shapes]

    @tf.function
    def grouped(given: list[tf.Tensor]) -> Any:
        return mpi_ops._grouped_allreduce(given, op=hvd.Average, name="step")

    @tf.function
    def one_by_one(given: list[tf.Tensor]) -> Any:
        return [
            mpi_ops._allreduce(one, op=hvd.Average, name=f"g{i}") for i, one in enumerate(given)
        ]

    @tf.function
    def collective(given: list[tf.Tensor]) -> Any:
        def replica(given: list[tf.Tensor]) -> Any:
            values = [tf.identity(one) for one in given]  # on the replica's device
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, values)

        return strategy.run(replica, args=(given,))

    small = tf.ones([4])

    @tf.function
    def chain(x: tf.Tensor) -> tf.Tensor:
        for link in range(CHAIN):
            x = mpi_ops._allreduce(x, op=hvd.Average, name=f"link{link}")
        return x

    @tf.function
    def adds(x: tf.Tensor) -> tf.Tensor:
        for _ in range(CHAIN):
            x = x + 1.0
        return x

    few = [tf.ones([4]) for _ in range(CHAIN)]
    calls: dict[str, Callable[[], Any]] = {
        "hvdtune": lambda: grouped(gradients),
        "hvdtune, one by one": lambda: one_by_one(gradients),
        "hvdtune.torch": lambda: hvdtune.torch.grouped_allreduce_(tensors, name="step"),
        "TensorFlow": lambda: collective(gradients),
        "eager allreduce": lambda: mpi_ops._allreduce(small, name="small"),
        "eager add": lambda: small + small,
        "grouped, a tensor": lambda: grouped(few),
        "chain, a call": lambda: chain(small),
        "chain add": lambda: adds(small),
    }
    found = ranks.time_in_turns(hvdtune, calls, args.rounds, 500, args.seconds)
    for name in ("grouped, a tensor", "chain, a call", "chain add"):
        found[name] = [seconds / CHAIN for seconds in found[name]]
    ranks.report(args.worker, hvd.rank(), found)
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
