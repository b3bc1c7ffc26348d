"""Epochs of an elastic job with NumPy; rank 0 notes in a file where and how large each one was.

The word after the script's name is a JSON object: "log", the file; "sizes": an epoch goes on until
the job has so many ranks, and for ten batches at least; "fails": {"EPOCH,BATCH": [start ranks]}
that end there; "how": "raise" or "kill"; "slow": {start rank: seconds} that sleep in each batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

import hvdtune as hvd
from hvdtune import elastic

BATCHES = 10
START_RANK = int(os.environ["HOROVOD_RANK"])


def note(plan: dict, state: elastic.ObjectState) -> None:
    line = {
        "epoch": state.epoch,
        "commits": state.commits,
        "host": os.environ["HOROVOD_HOSTNAME"],
        "start_rank": START_RANK,
        "size": hvd.size(),
        "local_rank": hvd.local_rank(),
        "generation": int(os.environ["HVDTUNE_JOB_ID"].rpartition("-")[2]),
    }
    with open(plan["log"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def fail(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ArithmeticError("this rank was to fail")


def train(state: elastic.ObjectState, plan: dict) -> int:
    sizes = plan["sizes"]
    while state.epoch < len(sizes):
        while state.batch < BATCHES or hvd.size() != sizes[state.epoch]:
            if START_RANK in plan["fails"].get(f"{state.epoch},{state.batch}", ()):
                fail(plan["how"])
            time.sleep(plan.get("slow", {}).get(str(START_RANK), 0))
            total = hvd.allreduce(np.ones(100), op=hvd.Sum, name="batch")
            assert (total == hvd.size()).all()
            state.batch += 1
            state.commits += 1
            state.commit()
            time.sleep(0.01)
        if hvd.rank() == 0:
            note(plan, state)
        state.epoch += 1
        state.batch = 0
        state.commit()
    return int(state.commits)


def main(plan: dict) -> int:
    """Train as planned; the number of commits."""
    hvd.init()
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=0, batch=0, commits=0)
    return elastic.run(train)(state, plan)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
