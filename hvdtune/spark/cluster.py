"""The program's Spark session from a job's point of view: classic, or Spark Connect."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

#: Horovod's message.
NO_SESSION = "Could not find an active SparkContext, are you running in a PySpark session?"
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def active() -> Cluster:
    """The current session. Raises Exception, with Horovod's message, if there is none."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        session = ConnectSession.getActiveSession() or ConnectSession._get_default_session()
        if session is not None:
            return Cluster(session)
    else:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        context = SparkContext._active_spark_context
        if context is not None:
            return Classic(SparkSession.builder.getOrCreate(), context)
    raise Exception(NO_SESSION)


class Cluster:
    """The interface to a session. This class is for Spark Connect, without a SparkContext."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def setting(self, key: str, default: str = "") -> str:
        """The value of one of Spark's settings."""
        return str(self.session.conf.get(key, default))

    @property
    def is_local(self) -> bool:
        """Whether all tasks run in Spark's own process, whose number of slots is fixed."""
        return _LOCAL.fullmatch(self.setting("spark.master")) is not None

    @property
    def is_heard(self) -> bool:
        """Whether executors can connect to this process; a Connect client may be anywhere."""
        return self.is_local

    def runs(self, tag: str) -> bool:
        """Whether all tasks of the job under a tag have been started, if Spark tells."""
        return False

    def parallelism(self) -> int:
        """How many tasks Spark runs in parallel by default."""
        from pyspark.sql.functions import spark_partition_id

        found = self.setting("spark.default.parallelism")
        if found:
            return int(found)
        numbers = self.session.range(0, 1_000_000).select(spark_partition_id().alias("number"))
        return int(numbers.distinct().count())

    def slots(self) -> int | None:
        """How many tasks the cluster can run at once now; None if that is not known."""
        return slots_of(self.setting("spark.master"), int(self.setting("spark.task.cpus", "1")))

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Inside, `cancel(tag)` can end whatever this thread makes Spark do."""
        self.session.addTag(tag)
        try:
            yield
        finally:
            self.session.removeTag(tag)

    def cancel(self, tag: str) -> None:
        """End the work under a tag."""
        self.session.interruptTag(tag)

    def addresses(self) -> list[str]:
        """Addresses at which tasks may find this process, the likeliest first."""
        from hvdtune.core.meeting.addresses import reachable

        return list(reachable().values())


class Classic(Cluster):
    """A session with a SparkContext in this process."""

    def __init__(self, session: Any, context: Any) -> None:
        super().__init__(session)
        self._context = context

    def setting(self, key: str, default: str = "") -> str:
        """The value of one of Spark's settings."""
        return str(self._context.getConf().get(key, default))

    @property
    def is_heard(self) -> bool:
        """Whether executors can connect to this process: Spark itself needs that."""
        return True

    def runs(self, tag: str) -> bool:
        """Whether all tasks of the job under a tag have been started, if Spark tells."""
        try:
            tracker = self._context.statusTracker()
            numbers = list(self._context._jsc.sc().statusTracker().getJobIdsForTag(tag))
            jobs = [job for job in map(tracker.getJobInfo, numbers) if job is not None]
            stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        except Exception:  # not part of PySpark's public interface
            return False
        return bool(stages) and all(
            one is not None and one.numActiveTasks + one.numCompletedTasks >= one.numTasks
            for one in stages
        )

    def parallelism(self) -> int:
        """How many tasks Spark runs in parallel by default."""
        return int(self._context.defaultParallelism)

    def slots(self) -> int | None:
        """How many tasks the cluster can run at once now; None if that is not known."""
        try:
            spark = self._context._jsc.sc()
            profile = spark.resourceProfileManager().defaultResourceProfile()
            return int(spark.maxNumConcurrentTasks(profile))
        except Exception:  # not part of Spark's public interface
            return super().slots()

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Inside, `cancel(tag)` can end whatever this thread makes Spark do."""
        self._context.addJobTag(tag)
        try:
            yield
        finally:
            self._context.removeJobTag(tag)

    def cancel(self, tag: str) -> None:
        """End the work under a tag."""
        self._context.cancelJobsWithTag(tag)

    def addresses(self) -> list[str]:
        """Addresses at which tasks may find this process, the likeliest first."""
        told = self.setting("spark.driver.host")
        return list(dict.fromkeys([*([told] if told else []), *super().addresses()]))


def slots_of(master: str, cpus: int = 1) -> int | None:
    """The slots in a master's name, for tasks with this many CPUs; None if it names none."""
    local, cluster = _LOCAL.fullmatch(master), _LOCAL_CLUSTER.fullmatch(master)
    if local is not None:
        cores = local[1] or "1"
        return (os.cpu_count() or 1 if cores == "*" else int(cores)) // cpus
    if cluster is not None:
        return int(cluster[1]) * (int(cluster[2]) // cpus)
    return None
