"""The places in which an estimator's ranks run."""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Backend(ABC):
    """Runs a function in several processes that are the ranks of one job."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """The results of `fn(*args, **kwargs)`, by rank. env: additional variables."""

    @abstractmethod
    def num_processes(self) -> int:
        """The number of ranks of a job."""


class SparkBackend(Backend):
    """Ranks in the tasks of a Spark job.

    num_proc: how many; by default Spark's default parallelism. env: their variables; those passed
    to `run` take precedence. kwargs: further arguments of `hvdtune.spark.run`, such as verbose,
    stdout or nics.
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        self._num_proc = num_proc
        self._env = dict(env or {})
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """The function's results, by rank."""
        from hvdtune.spark import run

        results: list[Any] = run(
            fn,
            args=tuple(args),
            kwargs=dict(kwargs or {}),
            num_proc=self.num_processes(),
            env={**self._env, **(env or {})},
            **self._kwargs,
        )
        return results

    def num_processes(self) -> int:
        """The number given, or Spark's default parallelism."""
        if self._num_proc is not None:
            return self._num_proc
        from hvdtune.spark import cluster

        return cluster.active().parallelism()


class LocalBackend(Backend):
    """Ranks on the driver's own machine, started by `hvdtune.run`, not by Spark's executors.

    Use it to try an estimator out, or if a cluster prepares the data for one large machine. The
    store must be reachable from that machine. num_proc: how many ranks. env: their variables.
    kwargs: further arguments of `hvdtune.run`.
    """

    def __init__(
        self, num_proc: int = 1, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        self._num_proc = num_proc
        self._env = dict(env or {})
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """The function's results, by rank."""
        from hvdtune.launch.function import pickling
        from hvdtune.launch.function.call_site import run

        call = pickling.call(fn, args, kwargs)
        return run(
            _with_variables,
            args=({**self._env, **(env or {})}, call),
            num_proc=self._num_proc,
            **self._kwargs,
        )

    def num_processes(self) -> int:
        """The number given."""
        return self._num_proc


def _with_variables(variables: Mapping[str, str], call: bytes) -> Any:
    """On a rank: set the variables before any module that reads them is imported."""
    os.environ.update(variables)
    fn, args, kwargs = pickle.loads(call)
    return fn(*args, **kwargs)
