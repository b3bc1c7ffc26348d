"""A program that runs jobs on three executors of one slot each, with GPUs that Spark believes in.

`python -m rank_programs.spark_executors SETTINGS`, in a folder of its own.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rank_programs import spark_jobs

GPUS = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0", "1"]}'
"""


def train(steps: int, once: str, how: str) -> dict[str, Any]:
    """Count steps; rank 1 of three ends badly at step 5, if nobody has left the file `once`.

    It then goes on until there are three ranks again.
    """
    import numpy as np

    import hvdtune as hvd
    from hvdtune.elastic import ObjectState, run_fn

    def count(state: Any) -> dict[str, Any]:
        while state.step < steps or (state.sizes[-1] < 3 and state.step < 3000):
            total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="one")
            state.step += 1
            state.sizes = [*state.sizes, int(total[0])]
            if state.step == 5 and hvd.rank() == 1 and not os.path.exists(once):
                Path(once).touch()
                fail(how)
            state.commit()
            time.sleep(0.05)
        changes = [n for n, m in zip(state.sizes, [0, *state.sizes], strict=False) if n != m]
        return {"rank": hvd.rank(), "size": hvd.size(), "step": state.step, "changes": changes}

    hvd.init()
    state = ObjectState(hvd.broadcast_object, hvd.rank, step=0, sizes=[])
    found: dict[str, Any] = run_fn(count, lambda: (hvd.shutdown(), hvd.init()))(state)
    return found


def fail(how: str) -> None:
    """End this rank, its executor with it, or only its function."""
    if how == "raise":
        raise ValueError("rank 1 has a reason")
    process = spark_jobs.parents()[1]
    for _ in range(2):  # the daemon that forks Spark's workers, the executor
        stat = Path(f"/proc/{process}/stat").read_bytes()
        process = int(stat.rpartition(b")")[2].split()[1])
    os.kill(process, signal.SIGKILL)
    time.sleep(60)


def main() -> None:
    """Print what was found as JSON."""
    from pyspark.sql import SparkSession

    from hvdtune.spark import conf, run, run_elastic

    script = Path("gpus.sh").absolute()
    script.write_text(GPUS)
    script.chmod(0o755)
    settings = {
        "spark.executor.memory": "512m",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        **dict([conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK]),
        **json.loads(sys.argv[1]),
    }
    builder = SparkSession.builder.master("local-cluster[3,1,512]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    out, err = io.StringIO(), io.StringIO()
    bounds = {"num_proc": 3, "min_num_proc": 2, "max_num_proc": 3, "stdout": out, "stderr": err}
    local = {"HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1"}
    found: dict[str, Any] = {
        "devices": run(spark_jobs.devices, num_proc=2, stderr=err),
        "ignored": run(spark_jobs.devices, num_proc=2, env=local, stderr=err),
    }
    for how in ("kill", "raise"):
        found[how] = run_elastic(train, (10, str(Path(how).absolute()), how), **bounds)
    found["said"] = err.getvalue()
    try:
        bounds["min_num_proc"] = 3
        run_elastic(train, (10, str(Path("limit").absolute()), "raise"), reset_limit=0, **bounds)
    except RuntimeError as error:
        found["failure"] = str(error)
    found["count"] = session.range(10).count()
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
