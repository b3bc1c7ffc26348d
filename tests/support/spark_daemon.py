"""The process that Spark's Python workers are forked from, with what takes long to import.

Spark ends workers that have nothing to do for a minute: each new one would import it again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os

from pyspark import daemon

# What predictions need. None of it starts a thread, which forked workers would not have; with
# this, PyArrow's does not.
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
for name in ("pandas", "pyarrow.parquet", "pyspark.ml", "pyspark.worker", "torch"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
# A worker's garbage collection leaves the memory alone that it shares with this process.
gc.freeze()

if __name__ == "__main__":
    daemon.manager()
