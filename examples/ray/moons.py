"""Trains a small network in Ray's processes, on generated points.

    python examples/ray/moons.py --workers 2

Without --address it starts Ray on this machine. With --min-workers the job is elastic: it uses all
of the cluster's CPUs, and continues if nodes are added or removed.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray

from hvdtune.ray import RayExecutor


def points(count: int, seed: int) -> tuple[Any, Any]:
    """Points of two half moons, and the moon of each."""
    import torch

    random = torch.Generator().manual_seed(seed)
    angle = torch.rand(count, generator=random) * torch.pi
    moon = torch.arange(count) % 2
    side = 1.0 - 2.0 * moon
    place = torch.stack([side * angle.cos() + moon, side * angle.sin() + moon / 2], dim=1)
    return place + 0.1 * torch.randn(count, 2, generator=random), moon


def train(epochs: int, batch: int) -> float:
    """One rank's training; returns the share of new points that it classifies correctly."""
    import torch

    import hvdtune.torch as hvd
    from hvdtune.ray import ray_logger

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )

    @hvd.elastic.run  # outside elastic jobs it only calls the function
    def loop(state: Any) -> None:
        places, moons = points(4096, seed=1)
        while state.epoch < epochs:
            # Each rank takes its part of every epoch's order, which is the same on all ranks.
            order = torch.randperm(
                len(places), generator=torch.Generator().manual_seed(state.epoch)
            )
            total = 0.0
            for chosen in order[hvd.rank() :: hvd.size()].split(batch):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(places[chosen]), moons[chosen])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(chosen)
            mean = hvd.allreduce(torch.tensor(total), op=hvd.Sum).item() / len(places)
            state.epoch += 1
            ray_logger.log({"epoch": state.epoch, "loss": mean, "workers": hvd.size()})
            state.commit()

    loop(hvd.elastic.TorchState(model, optimizer, epoch=0))
    places, moons = points(1024, seed=2)
    return float((model(places).argmax(dim=1) == moons).float().mean())


def show(logged: dict[str, Any]) -> None:
    """Receives, in this program, what rank 0 logs."""
    print("epoch {epoch}: loss {loss:.4f} ({workers} workers)".format(**logged), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="Ray's address, such as auto or ray://head:10001")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--min-workers", type=int, help="makes the job elastic")
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per worker")
    given = parser.parse_args()
    if given.address:
        ray.init(given.address)
    else:
        ray.init(num_cpus=given.workers, include_dashboard=False)
    workers: dict[str, Any] = {"num_workers": given.workers}
    if given.min_workers:
        workers = {"min_workers": given.min_workers}
    executor = RayExecutor(RayExecutor.create_settings(), use_gpu=given.use_gpu, **workers)
    executor.start()
    shares = executor.run(train, args=[given.epochs, given.batch_size], callbacks=[show])
    print(f"right: {min(shares):.1%}", flush=True)
    executor.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
