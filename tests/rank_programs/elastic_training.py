"""Elastic training whose result does not depend on who takes part, and deaths in all its phases.

    elastic_training.py '{"log": FILE, "steps": N, "pause": s, "deaths": [[PHASE, START_RANK], …]}'

Rank 0 notes every step: its number, the loss, and the parameters' norm. A process dies
once, in its phase, if its start rank is named; those that replace it have other ones.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune import _native, elastic

BATCH, WIDTH = 24, 40
AT = 5  # the step at which those die that die in one
FILLER = 200_000  # floats that make an operation last


def reference(steps: int) -> list[tuple[float, float]]:
    """What one process finds: loss and norm after each step."""
    weights, found = np.zeros(WIDTH), []
    for step in range(steps):
        gradient, loss = shares(weights, step, 0, 1)
        weights = weights - 0.05 * gradient / BATCH
        found.append((float(loss), float(np.linalg.norm(weights))))
    return found


def shares(weights: np.ndarray, step: int, rank: int, size: int) -> tuple[np.ndarray, float]:
    """The gradient and the loss of a rank's samples of a step's batch."""
    random = np.random.RandomState(step)
    inputs, targets = random.randn(BATCH, WIDTH)[rank::size], random.randn(BATCH)[rank::size]
    errors = inputs @ weights - targets
    return inputs.T @ errors, float(errors @ errors)


class Deaths:
    """Those that this process dies, each once."""

    def __init__(self, deaths: list[list[Any]]) -> None:
        start_rank = int(os.environ["HOROVOD_RANK"])
        self._phases = {phase for phase, victim in deaths if victim == start_rank}

    def due(self, phase: str) -> None:
        """Die, if it is time."""
        if phase in self._phases:
            os.kill(os.getpid(), signal.SIGKILL)

    def soon(self, phase: str) -> None:
        """Die in a moment, in the middle of what comes next."""
        if phase in self._phases:
            threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()


class State(elastic.ObjectState):
    """Parameters and the number of steps."""

    deaths: Deaths

    def save(self) -> None:
        if self.step == AT:
            self.deaths.due("commit")
        super().save()

    def check_host_updates(self) -> None:
        if self.step == AT:
            self.deaths.due("check")
        super().check_host_updates()

    def sync(self) -> None:
        self.deaths.soon("in sync")
        self.deaths.due("sync")
        super().sync()
        self.deaths.due("synchronised")

    def on_reset(self) -> None:
        self.deaths.due("reset")
        super().on_reset()


def main() -> None:
    """Train."""
    plan = json.loads(sys.argv[1])
    deaths = State.deaths = Deaths(plan["deaths"])
    real = _native.Engine

    def meet(options: Any) -> Any:
        deaths.due("meeting")
        return real(options)

    _native.Engine = meet
    hvd.init()
    deaths.due("start")
    log = Path(plan["log"])

    @elastic.run
    def train(state: State) -> None:
        while state.step < plan["steps"]:
            gradient, loss = shares(state.weights, state.step, hvd.rank(), hvd.size())
            values = np.concatenate([gradient, [loss], np.ones(FILLER)])
            if state.step == AT:
                deaths.soon("operation")
                deaths.due("step")
            total = hvd.allreduce(values, op=hvd.Sum, name="gradient")
            assert total[-1] == hvd.size()
            state.weights = state.weights - 0.05 * total[:WIDTH] / BATCH
            state.step += 1
            if state.step == AT:
                deaths.due("barrier")
                hvd.barrier()
                deaths.due("join")
                hvd.join()
            if hvd.rank() == 0:
                note = state.step, float(total[WIDTH]), float(np.linalg.norm(state.weights))
                with log.open("a") as file:
                    file.write(json.dumps([*note, hvd.size(), os.getpid()]) + "\n")
            state.commit()
            time.sleep(plan["pause"])
        deaths.due("return")

    train(State(hvd.broadcast_object, hvd.rank, weights=np.zeros(WIDTH), step=0))
    deaths.due("end")
    hvd.shutdown()


if __name__ == "__main__":
    main()
