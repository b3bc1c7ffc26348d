"""A batch loader, and a mixin that lets a thread load batches ahead.

    class Files(BaseDataLoader):
        def __len__(self): ...
        def _iterate(self): yield ...

    class FilesAhead(AsyncDataLoaderMixin, Files): ...

    loader = FilesAhead(async_loader_queue_size=8)

Classes, methods, arguments and the order of calls are those of Horovod 0.28's module of this name.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_LOOK_S = 0.1  # how often a thread that waits for room in the queue checks whether it must end


class BaseDataLoader:
    """The batches of an epoch, one after the other. A subclass needs at least `_iterate`."""

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many batches it has")

    def _iterate(self) -> Iterator[Any]:
        """Read and yield the batches of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no _iterate(), which yields batches")

    def _process_batch(self, batch: Any) -> Any:
        """Make the program's batch from one that was read, in the program's thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch."""
        for batch in self._iterate():
            yield self._process_batch(batch)


class _EndOfEpoch:
    """Follows an epoch's last batch. `error`: the error with which `_iterate()` ended, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Reading:
    """A thread that reads epoch after epoch, and the queue it fills."""

    def __init__(self, loader: AsyncDataLoaderMixin) -> None:
        self._batches: queue.Queue[Any] = queue.Queue(loader.async_loader_queue_size)
        self._is_over = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=self._read, args=(loader,), name="hvdtune-data-loader", daemon=True
        )
        self._thread.start()

    def _read(self, loader: AsyncDataLoaderMixin) -> None:
        while not self._is_over.is_set():
            try:
                for batch in loader._iterate():
                    if not self._give(batch):
                        return
            except BaseException as error:
                self._give(_EndOfEpoch(error))
                return
            self._give(_EndOfEpoch())

    def _give(self, batch: Any) -> bool:
        """Put it into the queue; False if it is no longer wanted."""
        while not self._is_over.is_set():
            try:
                self._batches.put(batch, timeout=_LOOK_S)
            except queue.Full:
                continue
            return True
        return False

    @property
    def is_ours(self) -> bool:
        """Whether this process reads, rather than one from which it was forked."""
        return self._process == os.getpid()

    @property
    def ahead(self) -> int:
        """How many batches have been read but not taken."""
        return self._batches.qsize()

    def take(self) -> Any:
        """The next batch, or the end of an epoch, even if another thread ends the reading."""
        while True:
            try:
                return self._batches.get(timeout=_LOOK_S)
            except queue.Empty:
                if self._is_over.is_set():
                    return _EndOfEpoch()

    def end(self) -> None:
        """Stop reading; waits until the batch that is being read is complete."""
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


class AsyncDataLoaderMixin:
    """Put this before a loader class among the bases: a thread then reads batches ahead.

    The thread starts with the first iteration, and reads the next epoch while the program is busy
    with this one. If the program breaks off in an epoch, its next iteration gets the rest. An error
    of `_iterate()` is raised in place of its batch; the next iteration starts again.
    """

    _iterate: Callable[[], Iterator[Any]]  # the loader's class has both
    _process_batch: Callable[[Any], Any]

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Read up to `async_loader_queue_size` batches ahead; 0: read in the program's thread.

        `debug_data_loader`: report on stderr, once per epoch, how far ahead it reads. All other
        arguments are for the loader's class.

        Raises:
            ValueError: the queue's size is negative.
        """
        if async_loader_queue_size < 0:
            raise ValueError(
                f"async_loader_queue_size is a number of batches, or 0 for no reading ahead, "
                f"not {async_loader_queue_size}"
            )
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._reading: _Reading | None = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the thread and drop what it has read; the next iteration starts again."""
        reading, self._reading = self._reading, None
        if reading is not None and reading.is_ours:
            reading.end()

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch."""
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._reading is None or not self._reading.is_ours:  # after a fork nobody reads
            self._reading = _Reading(self)
        reading = self._reading
        if self.debug_data_loader:
            ahead = f"{reading.ahead} of {self.async_loader_queue_size} batches ahead"
            print(f"{type(self).__name__}: {ahead}", file=sys.stderr)
        while not isinstance(batch := reading.take(), _EndOfEpoch):
            yield self._process_batch(batch)
        if batch.error is not None:
            if self._reading is reading:
                self.close_async_loader()
            raise batch.error
