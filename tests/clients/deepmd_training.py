"""Runs DeePMD-kit's command for training with TensorFlow, and shows what its ranks end with.

    hvdtune run -np 2 python deepmd_training.py input.json

is `dp --tf train input.json`, followed by a look at the variables that each rank's session has at
its end. They go into `found.json`.
"""

from __future__ import annotations

import functools
import json
import os
import sys

# Open MPI leaves a file in /dev/shm behind if mpi4py starts it in a process without mpirun.
os.environ["OMPI_MCA_btl"] = "self,tcp"  # noqa: SIM112

import horovod.tensorflow as hvd
from deepmd.main import main
from deepmd.tf.env import tf
from deepmd.tf.train.trainer import DPTrainer

trained = {}


def watch(train):
    """The method, with a look at the variables once it has ended."""

    @functools.wraps(train)
    def watched(self, *arguments, **options):
        done = train(self, *arguments, **options)
        variables = tf.trainable_variables()
        values = self.sess.run(variables)
        for variable, value in zip(variables, values, strict=True):
            trained[variable.name] = value.tolist()
        return done

    return watched


if __name__ == "__main__":
    DPTrainer.train = watch(DPTrainer.train)
    main(["--tf", "train", "--skip-neighbor-stat", *sys.argv[1:]])
    hvd.init()
    every = hvd.allgather_object({"rank": hvd.rank(), "trained": trained})
    if hvd.rank() == 0:
        with open("found.json", "w", encoding="utf-8") as file:
            json.dump(every, file)
