"""Programs of elastic jobs: what a process does, and prints as JSON, one object a line.

They count: each step adds the number of ranks, by an allreduce, to the state's `total`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune import elastic


def say(what: str, **fields: Any) -> None:
    line = {"what": what, "rank": int(os.environ["HOROVOD_RANK"]), **fields}
    print(json.dumps(line), flush=True)


def new_state() -> Any:
    return elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, total=0)


def train(state: Any, until: str, per_commit: int = 1) -> str:
    """Steps until the file ``until`` exists, which rank 0 sees; then the same number everywhere."""
    begun = [state.step, state.total]
    say("round", begun=begun, size=hvd.size(), generation=os.environ["HVDTUNE_JOB_ID"])
    while True:
        sums = np.array([1.0, float(hvd.rank() == 0 and Path(until).exists())])
        sums = hvd.allreduce(sums, op=hvd.Sum, name="step")
        assert sums[0] == hvd.size()
        state.step += 1
        state.total += hvd.size()
        if state.step == begun[0] + 3:
            say("stepped", step=state.step)
        if sums[1]:
            say("ends", step=state.step, total=state.total)
            return "done"
        if state.step % per_commit == 0:
            state.commit()
        time.sleep(0.002)


def count(until: str, per_commit: int = 1) -> None:
    """The elastic function, and a collective behind it."""
    hvd.init()
    run(until, per_commit)


def only_commit(until: str) -> None:
    """Rounds without any collective, as gradients of a rank that is alone need none."""
    hvd.init()

    def wait(state: Any) -> None:
        say("round", begun=[state.step, state.total], size=hvd.size())
        while not Path(until).exists():
            state.step += 1
            state.commit()
            time.sleep(0.002)

    elastic.run(wait)(new_state())


def gather_first(until: str) -> None:
    """A collective before the elastic function, after what is allowed there."""
    hvd.init()
    hvd.mark("loading")
    new_state().commit()
    assert hvd.rank() < hvd.size() == int(os.environ["HOROVOD_SIZE"])
    hvd.allgather_object(hvd.rank())
    run(until)


def die_before_sync(until: str) -> None:
    """Who was there from the beginning dies before it can send its state to a newcomer."""
    hvd.init()
    state = new_state()
    if hvd.size() == 1:
        state.register_reset_callbacks([lambda: os._exit(5)])
    elastic.run(train)(state, until)


def count_twice(until: str) -> None:
    """One elastic function after the other."""
    hvd.init()
    state = new_state()
    for end in (until, f"{until}.2"):
        assert elastic.run(train)(state, end) == "done"
    say("after", step=state.step, total=state.total, size=hvd.size())


def join_again(until: str) -> None:
    """The function has returned; rank 0 begins the job anew, which no other does."""
    hvd.init()
    run(until)
    if hvd.rank() == 0:
        hvd.shutdown()
        try:
            hvd.init()
        except ValueError as error:
            say("error", text=str(error))


def have_children(until: str) -> None:
    """Children of both kinds that call init() while their parent trains."""
    hvd.init()

    def with_children(state: Any, until: str) -> str:
        call = [sys.executable, "-c", "import hvdtune; hvdtune.init()"]
        started = subprocess.run(call, capture_output=True, text=True, check=False)
        said, child = os.pipe(), os.fork()
        if child == 0:
            try:
                hvd.shutdown()
                hvd.init()
            except ValueError as error:
                os.write(said[1], str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(said[1])
        with open(said[0], "rb") as text:
            forked = text.read().decode()
        say("children", pid=os.getpid(), started=started.stderr, forked=forked)
        return train(state, until)

    assert elastic.run(with_children)(new_state(), until) == "done"


def use_sets(until: str) -> None:
    """Process sets of init, in each round."""
    sets = [hvd.ProcessSet(ranks) for ranks in ([0, 1], [0, 2], [1, 2])]
    hvd.init(process_sets=sets)

    def sum_in(process_set: hvd.ProcessSet) -> Any:
        if not process_set.included() and process_set.process_set_id is not None:
            return None
        try:
            return int(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=process_set)[0])
        except ValueError as error:
            return str(error)

    def round_of_sets(state: Any, until: str, per_commit: int) -> str:
        say("sets", sums={str(each.ranks): sum_in(each) for each in sets})
        return train(state, until, per_commit)

    assert elastic.run(round_of_sets)(new_state(), until, 1) == "done"


def commit_early(until: str) -> None:
    """Rank 1 commits while an operation is in flight that rank 0 has completed."""
    hvd.init()

    def train(state: Any, until: str) -> None:
        say("round", begun=[state.step, state.total], size=hvd.size())
        begun = state.step
        while not Path(until).exists() or state.step < begun + 10:
            handle = hvd.allreduce_async(np.ones(1), op=hvd.Sum, name="step")
            if hvd.rank() == 0:
                hvd.synchronize(handle)
            state.step += 1
            state.commit()
            if hvd.rank() == 1:
                hvd.synchronize(handle)
            if state.step == begun + 3:
                say("stepped", step=state.step)

    elastic.run(train)(new_state(), until)


def run(until: str, per_commit: int = 1) -> None:
    state = new_state()
    state.register_reset_callbacks([lambda: say("reset", size=hvd.size())])
    assert elastic.run(train)(state, until, per_commit) == "done"
    steps = hvd.allgather_object((state.step, state.total))
    say("after", same=len(set(steps)) == 1, size=hvd.size())
