"""The program of an elastic job that trains with TensorFlow; see `elastic_jobs`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from rank_programs.elastic_jobs import say

import hvdtune.tensorflow as hvd


def train(state: Any, until: str) -> str:
    """Steps until the file ``until`` exists, which rank 0 sees."""
    begun = [state.step, state.total]
    say("round", begun=begun, size=hvd.size(), generation=os.environ["HVDTUNE_JOB_ID"])
    variable = state.variables[0]

    @tf.function
    def step(ends: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(variable - 1.0))
        tape = hvd.DistributedGradientTape(tape)
        variable.assign_sub(0.01 * tape.gradient(loss, [variable])[0])
        return hvd.allreduce(tf.stack([1.0, ends]), op=hvd.Sum, name="step")

    while True:
        sums = step(tf.constant(float(hvd.rank() == 0 and Path(until).exists())))
        assert sums[0] == hvd.size()
        state.step += 1
        state.total += hvd.size()
        if state.step == begun[0] + 3:
            say("stepped", step=state.step)
        if sums[1]:
            say("ends", step=state.step, total=state.total)
            return "done"
        state.commit()


def error_of_early_operation() -> str:
    """What an operation in a graph raises before the elastic function."""
    try:
        tf.function(lambda: hvd.allgather(tf.ones(1)))()
    except tf.errors.OpError as error:
        return str(error)
    return "none"


def count(until: str) -> None:
    """The elastic function, and a collective behind it."""
    hvd.init()
    number = int(os.environ["HVDTUNE_ELASTIC_ID"][1:])
    if number > 3:  # it has come to a job that runs already
        say("early", error=error_of_early_operation())
    variable = tf.Variable(np.full(4, number), dtype=tf.float32)  # only rank 0's counts
    state = hvd.elastic.TensorFlowState([variable], step=0, total=0)
    state.register_reset_callbacks([lambda: say("reset", size=hvd.size())])
    assert hvd.elastic.run(train)(state, until) == "done"
    every = hvd.allgather_object((state.step, state.total, variable.numpy().tolist()))
    say("after", same=all(other == every[0] for other in every), size=hvd.size())
