"""The interface through which `RayExecutor` runs a job: here, or in an actor if Ray is remote."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdtune.ray import crew


@dataclass
class BaseParams:
    """What each worker gets. Raises ValueError for parameters that contradict each other."""

    cpus_per_worker: float = 1
    use_gpu: bool = False
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_worker and not self.use_gpu:
            raise ValueError(
                f"gpus_per_worker={self.gpus_per_worker!r} needs use_gpu=True: give both or neither"
            )
        if self.use_gpu and isinstance(self.gpus_per_worker, int) and self.gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker!r}: give 1 or more, or None")
        self.gpus_per_worker = self.gpus_per_worker or int(self.use_gpu)


class Adapter(ABC):
    """Runs a job. The methods are `RayExecutor`'s; see there."""

    @abstractmethod
    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers."""

    @abstractmethod
    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None
    ) -> list[Any]:
        """`fn(executable)` on all workers."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """`fn(*args, **kwargs)` on all workers."""

    @abstractmethod
    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The same; returns a reference to each worker's value."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """`fn(executable)` on rank 0."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers."""


class CallingAdapter(Adapter):
    """hvdtune's adapters: `execute` and `run` call one method of every worker."""

    def execute(
        self,
        fn: Callable[[Any], Any],
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
        queue: Any = None,
    ) -> list[Any]:
        """`fn(executable)` on all workers; their logs go to callbacks, or into a queue."""
        return self._call("execute", fn, callbacks, queue)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
        queue: Any = None,
    ) -> list[Any]:
        """`fn(*args, **kwargs)` on all workers; logs as for `execute`."""
        return self._call("run", (fn, args or (), kwargs or {}), callbacks, queue)

    def _call(
        self,
        method: str,
        what: Any,
        callbacks: Sequence[Callable[[Any], Any]] | None,
        queue: Any,
    ) -> list[Any]:
        relay = crew.Relay(callbacks) if callbacks else None
        try:
            return self._carry_out(method, what, relay.queue if relay else queue, relay)
        finally:
            if relay is not None:
                relay.close()

    @abstractmethod
    def _carry_out(self, method: str, what: Any, queue: Any, relay: crew.Relay | None) -> list[Any]:
        """Call a method of all workers; they log into the queue, which the relay empties."""
