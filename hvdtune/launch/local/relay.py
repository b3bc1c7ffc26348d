"""The output of a job's processes on its way to the console and to files."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local.output import Console, ConsoleClosedError, WorkerStream

# Reads of a stream that is flushed. A pipe holds less, but a descendant may write for ever.
_MOST_READS = 64


class Relay:
    """Passes output on as it arrives; the job's own sentences go the same way.

    `give_up` says whether the job is ending, so that it does not wait for a stalled reader;
    `closed` is called when the console's reader has gone.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        give_up: Callable[[], bool],
        closed: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._console = Console(give_up)
        self._closed = closed
        self._unwritable: set[int] = set()

    def say(self, descriptor: int, text: str) -> None:
        """Write a text to descriptor 1 or 2."""
        self.write(descriptor, text.encode("utf-8", "replace"))

    def write(self, descriptor: int, data: bytes) -> None:
        """Write lines to descriptor 1 or 2."""
        try:
            self._console.write(descriptor, data)
        except ConsoleClosedError:
            # As any program does if its reader has gone.
            self._closed()
        except OSError as error:
            # A full disk must not end training.
            if descriptor not in self._unwritable:
                self._unwritable.add(descriptor)
                self.say(2, f"hvdtune run: output cannot be written: {error.strerror}\n")

    def print(self, stream: WorkerStream, lines: bytes) -> None:
        """Write a stream's lines to the console and to its file."""
        if stream.file is not None and lines:
            try:
                stream.file.write(lines)
            except OSError as error:
                name = stream.file.name
                stream.file = None
                self.say(2, f"hvdtune run: {name} is given up: {error.strerror}\n")
        self.write(stream.console_descriptor, lines)

    def watch(self, stream: WorkerStream) -> None:
        """Pass a stream on from now on until it ends."""
        assert stream.descriptor is not None
        self._selector.register(
            stream.descriptor, selectors.EVENT_READ, partial(self._pass_on, stream)
        )

    def flush(self, stream: WorkerStream) -> None:
        """Pass on what has been written, and close the stream if it has ended."""
        for _ in range(_MOST_READS):
            if stream.closed:
                return
            lines, goes_on = stream.read()
            self.print(stream, lines)
            if not goes_on:
                self.close(stream)
                return
            if not lines:
                self.print(stream, stream.finish())
                return

    def close(self, stream: WorkerStream) -> None:
        """Close a stream that may not have ended."""
        if stream.descriptor is not None:
            self._selector.unregister(stream.descriptor)
        stream.close()

    def _pass_on(self, stream: WorkerStream) -> None:
        lines, goes_on = stream.read()
        self.print(stream, lines)
        if not goes_on:
            self.close(stream)


def open_files(directory: str, name: str, setting: str) -> list[BinaryIO]:
    """The files directory/name/stdout and stderr, empty.

    `setting` is the caller's name for `directory`. Raises `LaunchError` if the files cannot be
    written.
    """
    folder = os.path.join(directory, name)
    try:
        os.makedirs(folder, exist_ok=True)
        return [open(os.path.join(folder, n), "wb", buffering=0) for n in ("stdout", "stderr")]
    except OSError as error:
        raise LaunchError(
            f"{setting}: {error.filename} cannot be written: {error.strerror}."
        ) from None
