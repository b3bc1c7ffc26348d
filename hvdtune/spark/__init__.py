"""Horovod jobs in a Spark cluster: ``hvdtune.spark.run(fn, num_proc=4)``.

Spark places the processes, as the tasks of one barrier stage; each task runs the function in a
child process, as a rank. This works in a classic session and through Spark Connect. Knows `launch`,
`core` and the faces that estimators train with.
"""

from __future__ import annotations

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark
except ImportError as error:
    raise ImportError(
        "hvdtune.spark needs PySpark 3.5 or newer and PyArrow, which cannot be imported here "
        f"({error}). Install them with: pip install 'hvdtune[spark]'"
    ) from error

from hvdtune.spark import conf
from hvdtune.spark.elastic.runner import run_elastic
from hvdtune.spark.horovod_runner import HorovodRunner, log_to_driver
from hvdtune.spark.runner import run

if tuple(map(int, _pyspark.__version__.split(".")[:2])) < (3, 5):
    raise ImportError(
        f"hvdtune.spark needs PySpark 3.5 or newer, and this is {_pyspark.__version__}. "
        "Install it with: pip install 'hvdtune[spark]'"
    )

__all__ = ["HorovodRunner", "conf", "log_to_driver", "run", "run_elastic"]
