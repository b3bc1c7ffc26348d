"""Spark sessions for tests: one JVM for many tests, which is gone when they are done."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

#: In the environment of Spark's processes and of all that come of them.
MARK = "HVDTUNE_TEST_SPARK"


@contextmanager
def spark_session(folder: Path, master: str = "local[2]") -> Iterator[Any]:
    """A classic session whose files lie in `folder`. Skips where Spark or Java is missing."""
    pytest.importorskip("pyspark", reason="Spark is not installed")
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is not installed")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)  # workers would take python3 from PATH
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.executor.heartbeatInterval": "1s",
        "spark.python.daemon.module": "support.spark_daemon",
    }
    builder = SparkSession.builder.master(master).appName("hvdtune-tests")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        with suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()  # the JVM ends when its standard input does
            process.wait(60)
        patch.undo()
