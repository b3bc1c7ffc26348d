"""Processes that come to a job that runs, and take their time; `join` and `stay` are the programs.

Who has been started later than the first two is a newcomer. What they do is printed as in
`elastic_jobs`; files in the working folder tell the others how far one is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune import elastic

NUMBER = int(os.environ["HVDTUNE_ELASTIC_ID"].rpartition(".")[2])  # of its start
GROW, THERE, GO, CAME, END = (Path(name) for name in ("grow", "there", "go", "came", "end"))
ALONE = 50  # steps
PATIENCE = 60.0


def say(what: str, **fields: Any) -> None:
    line = {"what": what, "rank": int(os.environ["HOROVOD_RANK"]), **fields}
    print(json.dumps(line), flush=True)


def new_state() -> Any:
    return elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, was_alone=False)


def step(state: Any) -> None:
    total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="step")
    assert total[0] == hvd.size()
    state.step += 1
    time.sleep(0.002)


@elastic.run
def grow(state: Any, expected: tuple[int, int]) -> None:
    """Until one process has been alone, and for five steps with a newcomer."""
    say("round", number=NUMBER, expected=expected, size=hvd.size(), step=state.step)
    if NUMBER == 2:
        CAME.touch()
    began = state.step
    state.was_alone |= hvd.size() == 1
    while not state.was_alone or hvd.size() == 1 or state.step < began + 5:
        step(state)
        if state.step == 3:
            GROW.touch()
        if NUMBER == 1 and THERE.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if NUMBER == 0 and hvd.size() == 1 and state.step == began + ALONE:
            GO.touch()
        state.commit()


def join() -> None:
    """Process 1 dies while a newcomer prepares, which goes on after so many steps of process 0.

    The process that replaces it comes after the newcomer, so that the newcomer moves up.
    """
    hvd.init()
    expected = hvd.rank(), hvd.size()
    if NUMBER > 1:
        THERE.touch()
        awaited = GO if NUMBER == 2 else CAME
        until = time.monotonic() + PATIENCE
        while not awaited.exists():
            assert time.monotonic() < until, "the others do not train on"
            time.sleep(0.01)
    state = new_state()
    state.register_reset_callbacks(
        [lambda: say("reset", place=[hvd.rank(), hvd.size()], step=state.step)]
    )
    grow(state, expected)


@elastic.run
def train(state: Any) -> None:
    """The first function."""
    say("round", number=NUMBER, function="train", size=hvd.size())
    for _ in range(3):
        step(state)


@elastic.run
def tune(state: Any) -> None:
    """The second one, until there is a file that rank 0 sees."""
    say("round", number=NUMBER, function="tune", size=hvd.size())
    GROW.touch()
    ends = False
    while not ends:
        step(state)
        ends = hvd.broadcast_object(END.exists(), name="ends")
        state.commit()


def stay() -> None:
    """A newcomer begins with the first function, and waits there until the job ends."""
    hvd.init()
    state = new_state()
    train(state)
    tune(state)


if __name__ == "__main__":
    {"join": join, "stay": stay}[sys.argv[1]]()
