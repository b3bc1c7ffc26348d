"""A program whose session has two executors, with GPUs that Spark believes in.

`python -m rank_programs.spark_executors SETTINGS`, in a folder of its own.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

from rank_programs import spark_jobs

GPUS = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0", "1"]}'
"""


def kill_executor() -> None:
    """Rank 1 kills the JVM above the Spark worker above its agent."""
    import numpy as np

    import hvdtune as hvd

    hvd.init()
    if hvd.rank() == 1:
        process = spark_jobs.parents()[1]
        for _ in range(2):  # the daemon that forks Spark's workers, the executor
            stat = Path(f"/proc/{process}/stat").read_bytes()
            process = int(stat.rpartition(b")")[2].split()[1])
        os.kill(process, signal.SIGKILL)
    hvd.allreduce(np.zeros(1, np.float32))


def main() -> None:
    """Print what was found as JSON."""
    from pyspark.sql import SparkSession

    from hvdtune.spark import run

    script = Path("gpus.sh").absolute()
    script.write_text(GPUS)
    script.chmod(0o755)
    builder = SparkSession.builder.master("local-cluster[2,1,512]")
    gpus = {
        "spark.executor.memory": "512m",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(script),
    }
    for key, value in {**json.loads(sys.argv[1]), **gpus}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    err = io.StringIO()
    local = {"HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1"}
    found = {
        "devices": run(spark_jobs.devices, num_proc=2, stderr=err),
        "ignored": run(spark_jobs.devices, num_proc=2, env=local, stderr=err),
    }
    try:
        run(kill_executor, num_proc=2, stderr=err)
    except RuntimeError as error:
        found["failure"] = str(error)
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
