"""The cost of communication in Keras' `fit`: hvdtune's optimizer, with and without other ranks.

It trains the CNN of `training.py`, on `--backend` torch or jax, in three models:

  hvdtune   DistributedOptimizer
  alone     the same over a process set that contains only its rank, so nothing is sent
  waiting   PartialDistributedOptimizer, which reduces the 330 numbers of the last layer: ranks
            wait for one another in every step, and send next to nothing

They take turns in the same processes: in each round one `fit` of each, of about `--seconds`, in
rotating order. A rank computes with one thread. Prints the medians of the samples that all ranks
together train on in a second. Shares of alone and of waiting are medians over the rounds, each of
which compares turns that follow one another. Rounds that other processes disturbed are repeated,
as in `training.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks
import training

BATCH, STEPS = 32, 10  # samples of a rank's batch, and batches of a `fit`


def main() -> int:
    """Measure; with `--worker`, be one rank."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default: 9)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn (default: 3)")
    args = parser.parse_args()
    os.environ.update(
        KERAS_BACKEND=args.backend,
        OMP_NUM_THREADS="1",
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    )
    if args.worker:
        worker(args)
        return 0
    found = ranks.measure(__file__, args.np, ranks.forwarded(args, "backend", "rounds", "seconds"))
    speeds = {name: [s * BATCH * STEPS for s in every] for name, every in found["speeds"].items()}
    print(f"Keras {found['keras']} on {args.backend}, CNN, batch {BATCH} a rank, np {args.np}")
    for name, every in speeds.items():
        print(f"  {name:<8}{ranks.median(every):9.0f} samples/s")
    for one, other in (("hvdtune", "alone"), ("waiting", "alone"), ("hvdtune", "waiting")):
        shares = [this / that for this, that in zip(speeds[one], speeds[other], strict=True)]
        print(f"  {one} is at {ranks.median(shares):.1%} of {other}", end="; ")
        print(f"the rounds: {', '.join(f'{share:.1%}' for share in shares)}")
    print(f"  other processes took at most {max(found['taken by others']):.0%}")
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    import keras
    import numpy as np

    import hvdtune
    import hvdtune.keras as hvd

    hvd.init(process_sets="dynamic")
    if args.backend == "torch":
        import torch

        torch.set_num_threads(1)
    own = [hvd.add_process_set([rank]) for rank in range(hvd.size())][hvd.rank()]
    generator = np.random.default_rng(hvd.rank())
    inputs = generator.normal(size=(BATCH * STEPS, 32, 32, 3)).astype("float32")
    classes = generator.integers(10, size=BATCH * STEPS)

    def fit(partial: bool = False, **options: Any) -> Callable[[], None]:
        keras.utils.set_random_seed(1)
        model = make_model(keras)
        distributed = hvd.DistributedOptimizer
        if partial:
            distributed = hvd.PartialDistributedOptimizer
            options["local_layers"] = [layer for layer in model.layers[:-1] if layer.weights]
        optimizer = distributed(keras.optimizers.SGD(0.01), **options)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        models.append(model)
        return lambda: model.fit(inputs, classes, BATCH, verbose=0, shuffle=False) and None

    models: list[Any] = []
    steps = {"hvdtune": fit(), "alone": fit(process_set=own), "waiting": fit(partial=True)}
    for step in steps.values():
        step()
    check(hvd, models)
    speeds, _, others = training.take_turns(hvdtune, steps, args.rounds, args.seconds)
    results = {"keras": keras.__version__, "speeds": speeds, "taken by others": others}
    ranks.report(args.worker, hvd.rank(), results)
    hvd.shutdown()


def check(hvd: Any, models: list[Any]) -> None:
    """Fail unless the first model is equal on all ranks, and no other one is."""
    sums = [sum(float(weight.sum()) for weight in model.get_weights()) for model in models]
    ours, *others = (set(values) for values in zip(*hvd.allgather_object(sums), strict=True))
    if hvd.size() > 1 and (len(ours) != 1 or any(len(other) == 1 for other in others)):
        raise SystemExit(f"rank {hvd.rank()}: sums of weights {ours} and {others}")


def make_model(keras: Any) -> Any:
    """The classifier of `training.make_model`, with as many parameters."""
    layers = keras.layers
    model = [layers.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        model += [layers.Conv2D(filters, 3, padding="same", activation="relu")]
        model += [layers.MaxPooling2D(2)]
    model += [layers.Conv2D(128, 3, padding="same", activation="relu"), layers.Flatten()]
    model += [layers.Dense(32, activation="relu"), layers.Dense(10)]
    return keras.Sequential(model)


if __name__ == "__main__":
    sys.exit(main())
