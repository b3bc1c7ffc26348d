"""A shell command that leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import IO, Any

GRACEFUL_TERMINATION_TIME_S = 5
_LOOK_S = 0.05


def execute(
    command: str | Iterable[str],
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Iterable[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Run a shell command; returns its exit status (128 + N after signal N).

    Its output goes to the given text files, by default to this process's own, with
    `[index]<stdout>:` before each line if there is an index. If one of the events is set, or an
    exception leaves this function, the command's processes get SIGTERM, and SIGKILL after
    GRACEFUL_TERMINATION_TIME_S seconds.
    """
    process = subprocess.Popen(
        command if isinstance(command, str) else " ".join(command),
        shell=True,
        env=None if env is None else dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    readers = [
        threading.Thread(
            target=_pass_on,
            args=(source, target, None if index is None else f"[{index}]<{name}>:", stamped),
            daemon=True,
        )
        for source, target, name, stamped in (
            (process.stdout, stdout or sys.stdout, "stdout", prefix_output_with_timestamp),
            (process.stderr, stderr or sys.stderr, "stderr", prefix_output_with_timestamp),
        )
    ]
    for reader in readers:
        reader.start()
    try:
        _wait(process, list(events or ()))
    finally:
        _end_group(process)
        for reader in readers:
            reader.join()
    status = process.wait()
    return 128 - status if status < 0 else status


def _wait(process: subprocess.Popen[bytes], events: list[threading.Event]) -> None:
    if not events:
        process.wait()
    while process.poll() is None and not any(event.is_set() for event in events):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the shell and the processes it has started, and wait for them."""
    _send(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
    while _send(process, 0) and time.monotonic() < deadline:
        process.poll()
        time.sleep(_LOOK_S)
    _send(process, signal.SIGKILL)
    process.wait()


def _send(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the command's process group; returns whether it still had a process."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _pass_on(source: IO[bytes], target: Any, prefix: str | None, stamped: bool) -> None:
    with source:
        for line in source:
            stamp = time.strftime("%a %b %d %H:%M:%S %Y") if stamped else ""
            target.write(stamp + (prefix or "") + line.decode("utf-8", "replace"))
            target.flush()
