"""The program of an elastic job that trains with PyTorch; see `elastic_jobs`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rank_programs.elastic_jobs import say

import hvdtune.torch as hvd

SAMPLES, BATCH = 60, 2


def train(state: Any, until: str) -> str:
    """Epochs until the file ``until`` exists; in each, every sample is processed once."""
    say(
        "round",
        begun=[state.step, state.total],
        size=hvd.size(),
        generation=os.environ["HVDTUNE_JOB_ID"],
    )
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    began, largest = state.step, max(state.largest, hvd.size())
    while True:
        for number, own in enumerate(
            torch.utils.data.DataLoader(range(SAMPLES), BATCH, sampler=state.sampler)
        ):
            state.optimizer.zero_grad()
            loss = state.model(data[own]).square().mean()
            loss.backward()
            state.optimizer.step()
            everyone = hvd.allgather_object(
                (own.tolist(), hvd.rank() == 0 and Path(until).exists())
            )
            state.seen = [*state.seen, *(index for indices, _ in everyone for index in indices)]
            state.sampler.record_batch(number, BATCH)
            state.step, state.total, state.largest = (
                state.step + 1,
                state.total + hvd.size(),
                largest,
            )
            if state.step == began + 3:
                say("stepped", step=state.step)
            if any(ends for _, ends in everyone):
                say("ends", step=state.step, total=state.total, epoch=state.sampler.epoch)
                return "done"
            state.commit()
        times = Counter(state.seen)
        assert set(times) == set(range(SAMPLES)), times
        assert sum(times.values()) - SAMPLES < largest * BATCH, times
        state.seen, largest = [], hvd.size()
        state.sampler.set_epoch(state.sampler.epoch + 1)
        state.commit()


def count(until: str) -> None:
    """The elastic function, and collectives behind it."""
    hvd.init()
    torch.manual_seed(int(os.environ["HVDTUNE_ELASTIC_ID"][1:]))  # only rank 0's weights count
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=4)
    state = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, seen=[], step=0, total=0, largest=0
    )
    state.register_reset_callbacks([lambda: say("reset", size=hvd.size())])
    assert hvd.elastic.run(train)(state, until) == "done"
    weights = [value.tolist() for value in model.state_dict().values()]
    every = hvd.allgather_object((state.step, state.total, weights))
    say("after", same=all(other == every[0] for other in every), size=hvd.size())
