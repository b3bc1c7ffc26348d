"""PyTorch in Spark: Spark places the processes, and each trains as a rank.

    pip install 'hvdtune[spark,torch]' scikit-learn pandas
    python examples/spark/pytorch_run.py --master 'local[2]'

With `spark-submit`, leave --master out.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import hvdtune.spark


def train(epochs: int, batch_size: int) -> dict[str, Any]:
    """One rank's training; its result is returned to the program."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    import hvdtune.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
    loader = DataLoader(data, batch_size=batch_size // hvd.size(), sampler=sampler)

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for features, targets in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(features), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        losses.append(float(hvd.allreduce(total / len(loader), name="loss")))
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    state = model.state_dict() if hvd.rank() == 0 else None
    return {"rank": hvd.rank(), "losses": losses, "state": state}


def main() -> None:
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="Spark's master; by default spark-submit's")
    parser.add_argument("--num-proc", type=int, help="ranks; by default one per slot")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of all ranks together")
    parser.add_argument("--timeline", help="a file for the recording of all ranks")
    options = parser.parse_args()

    builder = SparkSession.builder.appName("hvdtune")
    session = (builder.master(options.master) if options.master else builder).getOrCreate()
    results = hvdtune.spark.run(
        train,
        args=(options.epochs, options.batch_size),
        num_proc=options.num_proc,
        timeline=options.timeline,
    )
    state = results[0]["state"]
    print(f"{len(results)} ranks; loss {results[0]['losses'][-1]:.4f}; weights: {', '.join(state)}")
    session.stop()


if __name__ == "__main__":
    sys.exit(main())
