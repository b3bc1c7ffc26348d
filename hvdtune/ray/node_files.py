"""Files on a worker's node: its output, and its recording.

Ray sends both streams of a worker to files. Like the recording, they outlive the worker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hvdtune.launch.local.output import TAIL_LINES

RECORDING = "HOROVOD_TIMELINE"
#: Files of this process's output, and how long each was before it printed anything.
Output = Sequence[tuple[str, int]]
_MOST_BYTES = 1 << 16
_COLLECT_SECONDS = 60.0  # for a node's files
# Lines in which Ray says whose output follows.
_OF_RAY = (":job_id:", ":actor_name:", ":task_name:")


def own_output() -> list[tuple[str, int]]:
    """The files of this process's stdout and stderr, if they are files, and their current sizes."""
    found = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            state = os.fstat(descriptor)
            if stat.S_ISREG(state.st_mode):
                found.append((os.readlink(f"/proc/self/fd/{descriptor}"), state.st_size))
    return found


def last_lines(output: Output) -> list[str]:
    """The last lines of each stream, on the node that has the files."""
    found = []
    for path, begin in output:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
            found += [line for line in lines if not line.startswith(_OF_RAY)][-TAIL_LINES:]
    return found


def make_folder_of_recording(environ: Mapping[str, str]) -> None:
    """Make the folder that this process records to, if it records to a file."""
    name = environ.get(RECORDING, "")
    if os.path.isabs(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)


def take_folder(folder: str) -> dict[str, bytes]:
    """The contents of a folder's files by name; the folder is deleted."""
    files = [path for path in sorted(Path(folder).glob("*")) if path.is_file()]
    found = {path.name: path.read_bytes() for path in files}
    shutil.rmtree(folder, ignore_errors=True)
    return found


def collect(nodes: Iterable[str], folder: str) -> dict[str, bytes]:
    """`take_folder` on all of these nodes that can be reached."""
    found: dict[str, bytes] = {}
    for node in nodes:
        with contextlib.suppress(RayError):  # the node is gone
            found |= on_node(node, _COLLECT_SECONDS, take_folder, folder)
    return found


def on_node(node_id: str, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """The value of `function(*args)` on a node. Raises its error, or one of Ray's."""
    client = getattr(ray.util, "client", None)
    is_apart = client is not None and client.ray.is_connected()
    if not is_apart and node_id == ray.get_runtime_context().get_node_id():
        return function(*args)
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    reference = task.remote(*args)
    try:
        return ray.get(reference, timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(reference, force=True)
        raise
