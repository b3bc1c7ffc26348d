"""Many processes' output on one console, line by line, each with the name of its process.

A line ends with "\\n", "\\r" (a progress bar shows at once) or "\\r\\n". Bytes pass through as
they are: in UTF-8 no character contains a byte of a line's end, so cutting there cuts no
character.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

TAIL_LINES = 20
_CONSOLE_PIECE = select.PIPE_BUF  # a pipe that is ready takes this much without blocking
_INNER_LINE_END = rb"\r\n(?!\Z)|\r(?!\n|\Z)|\n(?!\Z)"


class ConsoleClosedError(OSError):
    """The reader of the launcher's output has gone."""


class LinePrefixer:
    """Cuts a stream of bytes into lines and puts a prefix before each.

    `prefix` is called for every piece that is passed on, as it may contain the time.
    """

    def __init__(self, prefix: Callable[[], bytes]) -> None:
        self._prefix = prefix
        self._unfinished: list[bytes] = []
        self._ended_in_cr = False

    def feed(self, data: bytes) -> bytes:
        """Take the stream's next bytes; return all lines that are now complete, with prefixes."""
        head = b""
        if self._ended_in_cr and data.startswith(b"\n"):
            # The second half of "\r\n": its line has been passed on already.
            head, data = b"\n", data[1:]
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._ended_in_cr = data.endswith(b"\r")
        if not cut:
            if data:
                self._unfinished.append(data)
            return head
        lines = b"".join(self._unfinished) + data[:cut]
        self._unfinished = [data[cut:]] if cut < len(data) else []
        return head + self._prefixed(lines)

    def finish(self) -> bytes:
        """Return the last line if it has no newline; none is added."""
        rest = b"".join(self._unfinished)
        self._unfinished = []
        return self._prefixed(rest) if rest else b""

    def _prefixed(self, lines: bytes) -> bytes:
        prefix = self._prefix()
        if b"\r" not in lines:
            return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + lines[-1:]
        return prefix + re.sub(_INNER_LINE_END, lambda end: end[0] + prefix, lines)


class Console:
    """The launcher's own stdout and stderr.

    A stalled reader must not keep the job alive: once `give_up()` is true, output that the console
    does not accept within a moment is dropped.
    """

    def __init__(self, give_up: Callable[[], bool]) -> None:
        self._give_up = give_up
        # If both are the same terminal or file, they share one position in the line.
        same = _identity(1) == _identity(2)
        self._line_of = {1: 0, 2: 0 if same else 1}
        self._mid_line = [False, False]

    def write(self, descriptor: int, data: bytes) -> None:
        """Write lines to descriptor 1 or 2, on a new line if another process left one unfinished.

        Raises `ConsoleClosedError` if the reader is gone, OSError for other failures.
        """
        if not data:
            return
        line = self._line_of[descriptor]
        if self._mid_line[line] and data[:1] not in (b"\n", b"\r"):
            data = b"\n" + data
        self._mid_line[line] = data[-1:] not in (b"\n", b"\r")
        self._write_all(descriptor, data)

    def _write_all(self, descriptor: int, data: bytes) -> None:
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        view = memoryview(data)
        patience = 2
        while view and patience:
            if not ready.poll(100):
                patience -= self._give_up()
                continue
            try:
                view = view[os.write(descriptor, view[:_CONSOLE_PIECE]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ConsoleClosedError("the launcher's output was closed") from None


def _identity(descriptor: int) -> tuple[int, int] | int:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return -descriptor
    return (status.st_dev, status.st_ino)


class WorkerStream:
    """One worker's stdout or stderr: a pipe, a prefix, perhaps a file, and the last lines.

    Without a `descriptor`, for another host, `take` receives the output. `name` is "stdout" or
    "stderr". `file` receives what the console gets, prefix included. `tail` is shared by a worker's
    two streams and keeps their last lines, without prefix.
    """

    def __init__(
        self,
        rank: int,
        name: str,
        descriptor: int | None,
        tail: deque[str],
        *,
        timestamps: bool = False,
        file: BinaryIO | None = None,
    ) -> None:
        self.rank = rank
        self.name = name
        self.descriptor = descriptor
        self.console_descriptor = 1 if name == "stdout" else 2
        self.file = file
        self.closed = False
        self._tail = tail
        label = f"[{rank}]<{name}>:"

        def prefix() -> bytes:
            return ((time.asctime() if timestamps else "") + label).encode()

        self._lines = LinePrefixer(prefix)
        self._tail_lines = LinePrefixer(lambda: b"")
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    def read(self) -> tuple[bytes, bool]:
        """Return (what to print, whether the stream continues); never waits."""
        if self.descriptor is None:
            return b"", True
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return b"", True
        return (self.take(data), True) if data else (self.finish(), False)

    def take(self, data: bytes) -> bytes:
        """Return what to print of the stream's next bytes."""
        self._remember(self._tail_lines.feed(data))
        return self._lines.feed(data)

    def finish(self) -> bytes:
        """Return what has been read but not yet printed."""
        self._remember(self._tail_lines.finish())
        return self._lines.finish()

    def close(self) -> None:
        """Close the pipe and the file."""
        self.closed = True
        if self.descriptor is not None:
            os.close(self.descriptor)
        if self.file is not None:
            self.file.close()

    def _remember(self, lines: bytes) -> None:
        # Only the last lines matter, and a chunk may hold thousands.
        for line in lines.rstrip(b"\r\n").rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]:
            if line.strip():
                # Keep only the last state of a progress bar.
                text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
                self._tail.append(text)
