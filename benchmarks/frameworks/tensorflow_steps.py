"""The cost of reducing a step's gradients in TensorFlow, with hvdtune and with TensorFlow's own.

A `tf.function` makes the gradients of a model (ResNet-50 unless `--model` names another), each a
variable times a number, and reduces them. Another makes them, keeps all until the last is made, as
a group must, and does nothing else. The difference of their medians is the cost of reducing. In
each round, one after the other:

  hvdtune               one grouped allreduce, as DistributedGradientTape makes it
  hvdtune, one by one   an allreduce for each gradient
  TensorFlow            MultiWorkerMirroredStrategy's all_reduce (gRPC, ring)
  hvdtune.torch         the same with PyTorch's tensors and grouped_allreduce_; new ones in every
                        step, as TensorFlow's gradients are, and PyTorch's after `zero_grad()`
  hvdtune.torch, kept   with tensors that stay in the same memory from step to step

A step takes as long as on the slowest rank. Then single calls with 4 floats, minus the time of the
same program without them: 100 in a chain and a group of 100 in a `tf.function`; in eager mode,
together with an addition. If JAX is installed, 100 in a chain in a `jax.jit`, minus the time of a
function with one of them.

TensorFlow's own hangs with 4 ranks now and then. `--alone` leaves it out; a job that takes longer
than `--limit` seconds is ended and measured again without it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

from hvdtune.bench.workloads.gradient_sets import WORKLOADS

CALLS = 100
REDUCING = {
    "hvdtune": "making",
    "hvdtune, one by one": "making",
    "TensorFlow": "making",
    "hvdtune.torch": "making in torch",
    "hvdtune.torch, kept": "making in torch, kept",
}


def main() -> int:
    """Measure; with `--worker`, be one rank."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--model", default="resnet50", help="gradient set (default: resnet50)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds (default: 8)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default: 1)")
    parser.add_argument("--limit", type=float, default=300, help="seconds in all (default: 300)")
    parser.add_argument("--alone", action="store_true", help="without TensorFlow's own")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "model", "rounds", "seconds")
    found = None
    if not args.alone:
        found = ranks.measure(__file__, args.np, arguments, args.limit)
        if found is None:
            print(f"TensorFlow's own is left out: not finished after {args.limit:.0f} s")
    if found is None:
        found = ranks.measure(__file__, args.np, [*arguments, "--alone"])
    print(f"{args.model}, np {args.np}, {args.rounds} rounds; ms to reduce a step's gradients")
    costs = {
        name: (ranks.median(found[name]) - ranks.median(found[alone])) * 1e3
        for name, alone in REDUCING.items()
        if name in found
    }
    for name, cost in costs.items():
        print(f"  {name:<20} {cost:8.2f}  {cost / costs['hvdtune']:6.2f} x hvdtune")
    print("4 floats, us a call")
    for name, alone in (("chain", "chain alone"), ("group", "group alone")):
        cost = ranks.median(found[name]) - ranks.median(found[alone])
        print(f"  {name:<20} {cost / CALLS * 1e6:8.1f}")
    if "JAX chain" in found:
        one = ranks.median(found["JAX one"])
        cost = (ranks.median(found["JAX chain"]) - one) / (CALLS - 1)
        print(f"  {'JAX chain':<20} {cost * 1e6:8.1f}")
        print(f"  {'JAX one':<20} {one * 1e6:8.1f}  with its dispatch")
    for name in ("eager", "eager addition"):
        print(f"  {name:<20} {ranks.median(found[name]) * 1e6:8.1f}")
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    strategy = None if args.alone else own_strategy()
    import tensorflow as tf
    import torch

    import hvdtune
    import hvdtune.tensorflow as hvd
    import hvdtune.torch
    from hvdtune.tensorflow import mpi_ops

    hvd.init()
    torch.set_num_threads(1)
    shapes = [shape for _, shape in WORKLOADS[args.model].backward_order()]
    variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    weights = [torch.ones(shape) for shape in shapes]
    gradients = [torch.empty(shape) for shape in shapes]
    small = tf.ones([4])

    def step(reduce: Callable[[list[tf.Tensor]], Any]) -> Callable[[], Any]:
        def run(factor: tf.Tensor) -> tf.Tensor:
            reduced = reduce([variable * factor for variable in variables])
            return tf.add_n([tf.reshape(one, [-1])[0] for one in reduced])

        traced = tf.function(run)
        factor = tf.constant(0.5)
        return lambda: traced(factor)

    def kept(given: list[tf.Tensor]) -> Any:
        with tf.control_dependencies(given):
            return [tf.identity(one) for one in given]

    def together(given: list[tf.Tensor]) -> Any:
        return mpi_ops._grouped_allreduce(given, op=hvd.Average, name="step")

    def one_by_one(given: list[tf.Tensor]) -> Any:
        return [mpi_ops._allreduce(g, op=hvd.Average, name=f"g{i}") for i, g in enumerate(given)]

    def in_torch(reduces: bool) -> None:
        made = [weight * 0.5 for weight in weights]
        if reduces:
            hvdtune.torch.grouped_allreduce_(made, name="step")

    def in_torch_kept(reduces: bool) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            torch.mul(weight, 0.5, out=gradient)
        if reduces:
            hvdtune.torch.grouped_allreduce_(gradients, name="step kept")

    def chain(link: Callable[[tf.Tensor, int], tf.Tensor]) -> Callable[[], Any]:
        def run(x: tf.Tensor) -> tf.Tensor:
            for number in range(CALLS):
                x = link(x, number)
            return x

        traced = tf.function(run)
        return lambda: traced(small)

    def group(reduce: Callable[[list[tf.Tensor]], Any]) -> Callable[[], Any]:
        traced = tf.function(lambda x: tf.add_n(reduce([x + float(i) for i in range(CALLS)])))
        return lambda: traced(small)

    def a_link(x: tf.Tensor, number: int) -> tf.Tensor:
        return mpi_ops._allreduce(x + 0.0, op=hvd.Average, name=f"link{number}")

    calls: dict[str, Callable[[], Any]] = {
        "making": step(kept),
        "hvdtune": step(together),
        "hvdtune, one by one": step(one_by_one),
        "making in torch": lambda: in_torch(False),
        "hvdtune.torch": lambda: in_torch(True),
        "making in torch, kept": lambda: in_torch_kept(False),
        "hvdtune.torch, kept": lambda: in_torch_kept(True),
        "chain alone": chain(lambda x, _: x + 0.0),
        "chain": chain(a_link),
        "group alone": group(lambda given: given),
        "group": group(lambda given: mpi_ops._grouped_allreduce(given, name="few")),
        "eager": lambda: mpi_ops._allreduce(small, name="small"),
        "eager addition": lambda: small + small,
    }
    if importlib.util.find_spec("jax") is not None:
        calls |= {"JAX one": in_jax(1), "JAX chain": in_jax(CALLS)}
    if strategy is not None:

        def replica(factor: tf.Tensor) -> tf.Tensor:
            given = [variable * factor for variable in variables]
            context = tf.distribute.get_replica_context()
            reduced = context.all_reduce(tf.distribute.ReduceOp.MEAN, given)
            return tf.add_n([tf.reshape(one, [-1])[0] for one in reduced])

        traced = tf.function(lambda factor: strategy.run(replica, args=(factor,)))
        calls["TensorFlow"] = lambda: traced(tf.constant(0.5))
    found = ranks.time_in_turns(hvdtune, calls, args.rounds, 500, args.seconds)
    ranks.report(args.worker, hvd.rank(), found)
    hvd.shutdown()


def in_jax(count: int) -> Callable[[], Any]:
    """A chain of `count` allreduces in one compiled function."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    import hvdtune.jax as hvd

    def run(x: Any) -> Any:
        for number in range(count):
            x = hvd.allreduce(x + 1.0, name=f"jax{count}.{number}")
        return x

    compiled, given = jax.jit(run), jax.numpy.ones([4])
    return lambda: compiled(given).block_until_ready()


def own_strategy() -> Any:
    """TensorFlow's strategy for the ranks of this job. Call it before TensorFlow does anything."""
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    workers = [f"127.0.0.1:{port + number}" for number in range(size)]
    task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    os.environ["TF_CONFIG"] = json.dumps(task)
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


if __name__ == "__main__":
    sys.exit(main())
