"""The cost of the hooks that record a PyTorch program's phases: a step's CPU time with and without.

A rank trains a model of several layers of 16 weights, with a DataLoader, and records, in turns with
and without hooks. Prints the medians of the turns' CPU times a step of the main thread, and the
median of their differences. Goal: 200 us, 1 % of a step of 20 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time

GOAL_US = 200.0


def main() -> int:
    """Measure; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20, help="(default: 20)")
    parser.add_argument("--turns", type=int, default=20, help="(default: 20)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOROVOD_TIMELINE"] = f"{folder}/t.json"
        hooked, plain = measured(args.layers, args.turns)
    more = statistics.median(one - other for one, other in zip(hooked, plain, strict=True))
    print(
        f"{args.layers} layers: {statistics.median(hooked):.0f} us a step with hooks, "
        f"{statistics.median(plain):.0f} without: {more:.0f} us more, {more / 200:.2f} % of a step "
        "of 20 ms"
    )
    return int(more > GOAL_US)


def measured(layers: int, turns: int) -> tuple[list[float], list[float]]:
    """us a step, of each turn, with hooks and without."""
    import torch
    from torch.utils.data import DataLoader

    import hvdtune.torch as hvd
    from hvdtune.torch import phases

    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    samples = list(torch.zeros(200, 4))

    def steps() -> float:
        loader = iter(DataLoader(samples, batch_size=1))
        begin = time.thread_time()
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        return 1e6 * (time.thread_time() - begin) / len(samples)

    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        with_hooks = steps()
        without = _unhooked(phases, steps)
        if turn:  # the first one warms up
            found[0].append(with_hooks)
            found[1].append(without)
    hvd.shutdown()
    return found


def _unhooked(phases, call) -> float:  # type: ignore[no-untyped-def]
    """`call()` without hooks, which the end of a step would bring back."""
    phases.unfollow()
    recorded = phases.marks.are_recorded
    phases.marks.are_recorded = lambda: False
    try:
        return float(call())
    finally:
        phases.marks.are_recorded = recorded
        phases.follow()


if __name__ == "__main__":
    sys.exit(main())
