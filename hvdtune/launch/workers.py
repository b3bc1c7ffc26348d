"""The workers of a job: started here and by agents on other hosts, and watched to their end.

Nothing here waits; the job's selector calls these functions.
"""

from __future__ import annotations

import os
import select
import selectors
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol

from hvdtune.launch.allocation.hosts import Slot
from hvdtune.launch.local import processes
from hvdtune.launch.local.output import WorkerStream
from hvdtune.launch.local.relay import Relay
from hvdtune.launch.local.spawn import StartError, start_worker
from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.worker import Worker

if TYPE_CHECKING:
    from hvdtune.launch.remote.connection import Connection

# When a connection is lost, ssh reports why a moment later.
COMPLAINT_SECONDS = 0.2


class Events(Protocol):
    """How a job learns about its workers."""

    def started(self, worker: Worker) -> None:
        """The worker runs; its pid is known."""

    def not_started(self, worker: Worker, error: StartError) -> None:
        """Its host could not start it."""

    def ended(self, worker: Worker) -> None:
        """It has ended as `code`, and perhaps `loss`, say; its output has been passed on."""

    def introduced(self, connection: Connection, facts: bytes) -> None:
        """An agent that serves describes its host: JSON (see `remote.identity.facts`)."""

    def lost(self, connection: Connection) -> None:
        """A connection has ended; `ended` has been called for any workers that were left."""


class Workers:
    """All workers of a job, by number. Must own its process, as it reaps every child there is."""

    def __init__(
        self, selector: selectors.BaseSelector, relay: Relay, events: Events, timestamps: bool
    ) -> None:
        self._selector = selector
        self._relay = relay
        self._events = events
        self._timestamps = timestamps
        self.all: dict[int, Worker] = {}
        self._here: dict[int, Worker] = {}  # the running ones, by pid
        self._connections: list[Connection] = []

    def running(self) -> Iterable[Worker]:
        """The workers that have not ended."""
        return (worker for worker in self.all.values() if worker.running)

    def leave(self) -> list[str]:
        """Wait no longer for workers that may not be ended; returns a sentence about each."""
        said = []
        for worker in self.running():
            if not worker.may_be_signalled():
                worker.left = True
                said.append(
                    f"rank {worker.slot.rank} (process {worker.pid}) runs as another user: it "
                    "cannot be ended, and goes on"
                )
        return said

    # -- starting --

    def start(
        self,
        number: int,
        slot: Slot,
        command: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[BinaryIO | None],
        descriptors: Sequence[int] = (),
        open_files: tuple[int, int] | None = None,
    ) -> Worker:
        """Start a worker on this host; `files` get its output as well. Raises `StartError`."""
        process = start_worker(command, environment, descriptors, open_files)
        worker = self.all[number] = Worker(number, slot, process)
        self._here[worker.pid] = worker
        for pipe, file in zip((process.stdout, process.stderr), files, strict=True):
            assert pipe is not None
            try:
                descriptor = os.dup(pipe.fileno())
                self._relay.watch(self._add_stream(worker, descriptor, file))
            except OSError as error:
                raise StartError.of_rank(slot.rank, slot.size, error) from None
            pipe.close()
        self._events.started(worker)
        return worker

    def connect(self, hostname: str, command: Sequence[str]) -> Connection:
        """Start an agent on another host. Raises `StartError`."""
        from hvdtune.launch.remote.connection import Connection

        connection = Connection(hostname, command)
        self._connections.append(connection)
        for descriptor, do in (
            (connection.output, self._hear),
            (connection.errors, self._complain),
        ):
            self._selector.register(descriptor, selectors.EVENT_READ, partial(do, connection))
        return connection

    def expect(
        self, number: int, slot: Slot, connection: Connection, files: Sequence[BinaryIO | None]
    ) -> Worker:
        """Register a worker that an agent has been told to start."""
        worker = self.all[number] = Worker(number, slot, connection=connection)
        for file in files:
            self._add_stream(worker, None, file)
        return worker

    def _add_stream(
        self, worker: Worker, descriptor: int | None, file: BinaryIO | None
    ) -> WorkerStream:
        name = ("stdout", "stderr")[len(worker.streams)]
        stream = WorkerStream(
            worker.slot.rank, name, descriptor, worker.tail,
            timestamps=self._timestamps, file=file,
        )  # fmt: skip
        worker.streams.append(stream)
        return stream

    # -- other hosts --

    def register_input(self) -> None:
        """Wait for connections to accept unsent data."""
        for connection in self._connections:
            registered = connection.input in self._selector.get_map()
            if connection.has_unsent and not registered:
                self._selector.register(connection.input, selectors.EVENT_WRITE, connection.pump)
            elif registered and not connection.has_unsent:
                self._selector.unregister(connection.input)

    def _hear(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # it was given up a moment ago
        frames = connection.frames()
        for frame in frames or ():
            try:
                self._take(connection, frame)
            except ValueError as error:
                connection.complain(f"the host's output is not the agent's: {error}")
                frames = None
                break
        if frames is None:
            self.lose(connection)

    def _take(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == Kind.FACTS:
            self._events.introduced(connection, frame.payload)
            return
        worker = self.all.get(frame.number)
        if worker is None or worker.connection is not connection:
            return
        if frame.kind in (Kind.STDOUT, Kind.STDERR):
            stream = worker.streams[frame.kind == Kind.STDERR]
            self._relay.print(stream, stream.take(frame.payload))
        elif frame.kind == Kind.STARTED:
            worker.pid = int(frame.payload)
            self._events.started(worker)
        elif frame.kind == Kind.EXIT:
            self._note_end(worker, int(frame.payload))
        elif frame.kind == Kind.NOT_STARTED:
            status, _, why = frame.payload.decode("utf-8", "replace").partition(" ")
            error = StartError(int(status), f"on {worker.slot.hostname}: {why}")
            self._events.not_started(worker, error)

    def _complain(self, connection: Connection) -> bool:
        """Pass on ssh's and the agent's stderr; return whether there may be more."""
        if connection.errors not in self._selector.get_map():
            return False  # it ended a moment ago
        lines, goes_on = connection.complaints()
        self._relay.write(2, lines)
        if not goes_on:
            self._selector.unregister(connection.errors)
        return goes_on

    def lose(self, connection: Connection) -> None:
        """A connection has ended, or is given up, and with it the workers that still ran."""
        workers = [w for w in self.all.values() if w.connection is connection]
        deadline = time.monotonic() + COMPLAINT_SECONDS
        while connection.is_silent or any(w.running for w in workers):
            left = deadline - time.monotonic()
            # select() cannot handle descriptors above 1023.
            ready = select.poll()
            ready.register(connection.errors, select.POLLIN)
            if not ready.poll(1000 * max(0.0, left)) or not self._complain(connection):
                break
            if left <= 0.0:
                break  # another process may hold ssh's stderr, and write for ever
        self._connections.remove(connection)
        for descriptor in (connection.input, connection.output):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        connection.close()
        for worker in workers:
            if worker.running:
                worker.loss = connection.lost()
                self._note_end(worker, 255)
            for stream in worker.streams:
                if not stream.closed:
                    self._relay.print(stream, stream.finish())
                    stream.close()
        self._events.lost(connection)

    # -- ends --

    def collect(self) -> list[tuple[int, int]]:
        """Take note of the workers that have ended; return other children's (pid, exit code)."""
        others = []
        for pid, code in processes.reap_all():
            worker = self._here.pop(pid, None)
            if worker is None or worker.process is None:
                others.append((pid, code))
            else:
                worker.process.returncode = code
                self._note_end(worker, code)
        return others

    def _note_end(self, worker: Worker, code: int) -> None:
        worker.code = code
        self._events.ended(worker)

    def flush(self, worker: Worker) -> None:
        """Print what a worker has left in its pipes."""
        for stream in worker.streams:
            self._relay.flush(stream)

    def prune(self) -> None:
        """Forget workers that have ended; on this host their output must also have ended."""
        for number, worker in [*self.all.items()]:
            if worker.running or (worker.process and any(not s.closed for s in worker.streams)):
                continue
            for stream in worker.streams:
                if not stream.closed:
                    stream.close()
            del self.all[number]

    def open_streams(self) -> bool:
        """Whether any process may still print something."""
        return any(not stream.closed for w in self.all.values() for stream in w.streams)
