"""The actor that is one rank."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from hvdtune.launch import placed
from hvdtune.ray import node_files, ray_logger


class BaseHorovodWorker:
    """A process of the job. Ray makes it an actor; the driver calls its methods."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        placed.become(
            {
                "HOROVOD_HOSTNAME": self.node_id(),
                "HOROVOD_RANK": str(world_rank),
                "HOROVOD_SIZE": str(world_size),
            }
        )
        self._output = node_files.own_output()

    def node_id(self) -> str:
        """Ray's name for the node; without Ray, the host's name."""
        if not ray.is_initialized():
            return self.hostname()
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """The host's name."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray has given to this worker, as CUDA_VISIBLE_DEVICES names them."""
        return [str(one) for one in ray.get_runtime_context().get_accelerator_ids()["GPU"]]

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set environment variables; values become texts."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The environment."""
        return dict(os.environ)

    def facts(self) -> dict[str, Any]:
        """The facts that the driver needs: fields of `PlacedProcess` and of `crew.Member`."""
        process = placed.this_process(
            host=self.node_id(),
            hostname=self.node_id(),
            address=ray.util.get_node_ip_address(),
            gpus=self.get_gpu_ids(),
        )
        return {
            "process": process._asdict(),
            "pid": os.getpid(),
            "node_id": self.node_id(),
            "hostname": self.hostname(),
            "output": self._output,
        }

    def become_rank(self, variables: Mapping[str, str], more: Mapping[str, Any]) -> None:
        """Take a place in the job (see `hvdtune.launch.placed`), and set more variables."""
        placed.become(variables)
        self.update_env_vars(more)
        node_files.make_folder_of_recording(os.environ)

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that `execute` passes to functions."""
        if executable_cls:
            with _leaving_on_error():
                self.executable = executable_cls(
                    *(executable_args or ()), **(executable_kwargs or {})
                )

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """`func(executable)`; the executable is None if no class was given."""
        with _leaving_on_error():
            return func(self.executable)

    def run(self, call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> Any:
        """`fn(*args, **kwargs)` of a call (fn, args, kwargs)."""
        fn, args, kwargs = call
        with _leaving_on_error():
            return fn(*args, **kwargs)

    def take_part(self, method: str, what: Any, *executable: Any) -> tuple[bool, Any]:
        """Run one process of an elastic job from start to end: `execute` or `run`.

        Returns (True, the value), or (False, the exit code) if it leaves early.
        """
        try:
            self.start_executable(*executable)
            value = getattr(self, method)(what)
        except SystemExit as end:
            return False, end.code if isinstance(end.code, int) else int(end.code is not None)
        _leave()
        return True, value

    def set_queue(self, queue: Any) -> None:
        """Set where `ray_logger` sends what this worker logs; None: nowhere."""
        ray_logger.configure(queue)

    def leave(self) -> None:
        """End the job in this process, if it has begun; that completes recordings."""
        _leave()


class _leaving_on_error(contextlib.AbstractContextManager[None]):
    """Leaves the job after an error, so that the other ranks do not wait for this process."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            with contextlib.suppress(Exception):
                _leave()


def _leave() -> None:
    job = sys.modules.get("hvdtune.core.job")
    if job is not None:
        job.shutdown()
