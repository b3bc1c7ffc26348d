"""Spark's settings for elastic jobs, as (key, value) for `SparkSession.builder.config(*pair)`.

The names are Horovod's. The keys are Spark's since 3.1: spark.excludeOnFailure.*; the old ones,
spark.blacklist.*, no longer have an effect.
"""

from __future__ import annotations

SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"

_TASKS = "spark.task.maxFailures"
_ENABLED = "spark.excludeOnFailure.enabled"
_STAGE_EXECUTOR = "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor"
_STAGE_NODE = "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode"
_TASK_EXECUTOR = "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor"
_TASK_NODE = "spark.excludeOnFailure.task.maxTaskAttemptsPerNode"
_APP_EXECUTOR = "spark.excludeOnFailure.application.maxFailedTasksPerExecutor"
_APP_NODE = "spark.excludeOnFailure.application.maxFailedExecutorsPerNode"

#: An elastic job counts failures itself, so Spark must keep restarting failed tasks.
SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = (_TASKS, SPARK_CONF_MAX_INT)

#: Whether Spark excludes executors and nodes at all. All settings below need it.
SPARK_CONF_BLACKLIST_DISABLED = (_ENABLED, "false")
SPARK_CONF_BLACKLIST_ENABLED = (_ENABLED, "true")

#: Within the job: exclude executors on which a task has failed, and nodes with such executors.
SPARK_CONF_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILING_NODE = (_STAGE_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_STAGE_NODE, "1")

#: For the next attempt of the task that failed there.
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (_TASK_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (_TASK_EXECUTOR, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_TASK_EXECUTOR, "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (_TASK_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = (_TASK_NODE, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_TASK_NODE, "1")

#: In all jobs of the application. Dynamic allocation replaces only executors excluded here.
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_APP_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (_APP_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_APP_NODE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (_APP_NODE, "1")

#: Spark's default.
SPARK_CONF_DEFAULT_VALUES = {
    _TASKS: "4",
    _ENABLED: "false",
    _STAGE_EXECUTOR: "2",
    _STAGE_NODE: "2",
    _TASK_EXECUTOR: "1",
    _TASK_NODE: "2",
    _APP_EXECUTOR: "2",
    _APP_NODE: "2",
}
