"""Stochastic variational inference with Pyro, written as its example for Horovod is.

The ranks see different halves of the data; with `serial` one process sees all of it. What the
ranks found goes into `found.json`.
"""

from __future__ import annotations

import json
import sys

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam, HorovodOptimizer
from torch.distributions import constraints

ROWS, STEPS = 40, 60


def model(seen: torch.Tensor, scale: float) -> None:
    """Samples around a mean that has a prior; `scale` rows stand for each one seen."""
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    with pyro.plate("rows", len(seen)), pyro.poutine.scale(scale=scale):
        pyro.sample("seen", dist.Normal(mean, 1.0), obs=seen)


def guide(seen: torch.Tensor, scale: float) -> None:
    """A normal distribution whose place and width are learnt."""
    place = pyro.param("place", torch.tensor(0.0))
    width = pyro.param("width", torch.tensor(1.0), constraint=constraints.positive)
    pyro.sample("mean", dist.Normal(place, width))


def main(serial: bool) -> None:
    """Infer the mean and write down what each rank has learnt."""
    rank, size, hvd = 0, 1, None
    if not serial:
        import horovod.torch as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
    data = 3.0 + torch.randn(ROWS, generator=torch.Generator().manual_seed(3))
    seen = data[rank::size]
    pyro.set_rng_seed(20)  # the guide's samples are the same on all ranks
    optimizer = Adam({"lr": 0.1})
    guide(seen, float(size))  # makes the parameters
    if hvd is not None:
        if rank:
            pyro.param("place").data.fill_(-5.0)  # the broadcast has something to do
        hvd.broadcast_parameters(dict(pyro.get_param_store().named_parameters()), root_rank=0)
        optimizer = HorovodOptimizer(optimizer)
    inference = SVI(model, guide, optimizer, Trace_ELBO())
    losses = [inference.step(seen, float(size)) for _ in range(STEPS)]
    found = {
        "rank": rank,
        "place": pyro.param("place").item(),
        "width": pyro.param("width").item(),
        "first": losses[0],
        "last": losses[-1],
        "mean": data.mean().item(),
    }
    every = [found] if hvd is None else hvd.allgather_object(found)
    if rank == 0:
        with open("found.json", "w", encoding="utf-8") as file:
            json.dump(every, file)


if __name__ == "__main__":
    main("serial" in sys.argv[1:])
