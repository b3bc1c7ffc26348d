"""A program with a session of Spark Connect: `python -m rank_programs.spark_connect SETTINGS`."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from rank_programs import spark_jobs


def message(*args: Any, **kwargs: Any) -> str:
    """What `horovod.spark.run` raises."""
    import horovod.spark

    try:
        horovod.spark.run(*args, **kwargs)
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    """Print what was found as JSON."""
    import horovod.spark
    from pyspark.sql import SparkSession

    from hvdtune.spark import cluster
    from hvdtune.spark import run as cluster_run

    builder = SparkSession.builder.remote("local[2]")
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    out, err = io.StringIO(), io.StringIO()
    found = {
        "classic": isinstance(cluster.active(), cluster.Classic),
        "results": horovod.spark.run(spark_jobs.allreduce, (1.0,), stdout=out, stderr=err),
        "failure": message(spark_jobs.end_badly, ("exit",), num_proc=2, stdout=err, stderr=err),
        "too few": message(spark_jobs.allreduce, (1.0,), num_proc=3, stderr=err),
        "count": session.range(10).count(),
        "output": sorted(out.getvalue().splitlines()),
        "alias": horovod.spark.run is cluster_run,
    }
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
