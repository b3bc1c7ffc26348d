"""A Spark task of an elastic job: it starts a rank when the program asks for it.

If its rank fails, Spark restarts the task, perhaps elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any

from hvdtune.launch import placed
from hvdtune.launch.remote.frames import Frame, FrameReader, Kind, encode
from hvdtune.launch.remote.link import Link
from hvdtune.spark.order import Order, start_agent
from hvdtune.spark.task import own_gpus

_PIECE = 2**20


def serve(order: Order) -> Iterator[tuple[int, str, bytes]]:
    """Obey the program until it closes the link. Yields nothing: results use the link.

    Raises RuntimeError if a rank fails, so that Spark restarts the task.
    """
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    attempt = int(context.taskAttemptId())
    facts = placed.this_process()
    link = Link.open(order.reachable_at(), order.port, order.key, attempt, facts._asdict())
    if link is None:
        return  # the job is over, or this task cannot join it
    with tempfile.TemporaryFile() as call, tempfile.TemporaryFile() as result:
        order.write_call(call)
        try:
            gpus = own_gpus(order, context.resources())
            _Host(order, link, [call.fileno(), result.fileno()], result, gpus).serve()
        finally:
            link.close()
    yield from ()


class _Host:
    """Connects the program with this task's agent."""

    def __init__(
        self,
        order: Order,
        link: Link,
        descriptors: list[int],
        result: IO[bytes],
        gpus: Mapping[str, str],
    ) -> None:
        self._order = order
        self._gpus = gpus
        self._link = link
        self._descriptors = descriptors
        self._result = result
        self._agent = start_agent("serve", descriptors)

    def serve(self) -> None:
        listener = threading.Thread(target=self._obey, name="hvdtune-spark", daemon=True)
        listener.start()
        assert self._agent.stdout is not None
        try:
            reader = FrameReader(after_mark=True)
            while data := os.read(self._agent.stdout.fileno(), 65536):
                for frame in reader.feed(data):
                    self._report(frame)
        finally:
            self._dismiss()
            self._agent.wait()
            self._agent.stdout.close()

    def _obey(self) -> None:
        """Pass the program's frames to the agent; when they end, end the agent."""
        assert self._agent.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            for frame in self._link.frames():
                if frame.kind == Kind.START:
                    self._agent.stdin.write(self._start(frame))
                else:
                    self._agent.stdin.write(encode(frame.kind, frame.number, frame.payload))
        self._dismiss()

    def _start(self, frame: Frame) -> bytes:
        variables = {**self._order.job, **self._gpus, **json.loads(frame.payload)}
        environment = self._order.environment_of(variables)
        return self._order.start_frame(frame.number, environment, self._descriptors)

    def _dismiss(self) -> None:
        assert self._agent.stdin is not None
        with contextlib.suppress(OSError):
            self._agent.stdin.close()

    def _report(self, frame: Frame) -> None:
        if frame.kind in (Kind.ALIVE, Kind.FACTS):
            return
        code = int(frame.payload) if frame.kind == Kind.EXIT else 0
        if frame.kind == Kind.EXIT and code == 0:
            self._result.seek(0)
            while piece := self._result.read(_PIECE):
                self._link.send(Kind.RESULT, frame.number, piece)
        self._link.send(frame.kind, frame.number, frame.payload)
        if code or frame.kind == Kind.NOT_STARTED:
            raise RuntimeError(f"process {frame.number} of the elastic job ended with code {code}")
