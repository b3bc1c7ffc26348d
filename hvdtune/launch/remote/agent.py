"""The launcher's agent on another host: ssh starts it, and it starts the workers there.

`main(["facts"])` describes this host in one line. `main(["run"])` reads a START frame from stdin
and then runs workers: it sends their output and their ends to stdout as frames (`frames`), and
receives signals. The START frame has everything that must not appear on a command line: the
workers' environment, and with it the job's secret. `main(["serve"])` first describes this host,
starts workers whenever it is told to, and stays when they have ended.

When stdin ends, the launcher or the connection is gone: the workers, and all that they started,
get SIGTERM and shortly afterwards SIGKILL. The same happens if the agent gets SIGTERM or SIGINT.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from hvdtune.launch.local import processes
from hvdtune.launch.local.environment import with_alias
from hvdtune.launch.local.spawn import StartError, start_worker
from hvdtune.launch.remote.frames import MARK, Frame, FrameError, FrameReader, Kind, encode
from hvdtune.launch.remote.identity import facts

FACTS = "hvdtune facts: "
GRACE_SECONDS = 1.0  # between SIGTERM and SIGKILL, once the launcher is gone
DRAIN_SECONDS = 0.5  # for output from descendants of ended workers
# Unsent bytes to the launcher; if there are more, workers have to wait with their output.
_MOST_UNSENT = 4 * 2**20
# If the launcher's host vanishes, this is noticed because nothing reads what is sent to it.
_ALIVE_SECONDS = 15.0
_MOST_READS = 64  # of a worker's pipe, once it has ended


def main(words: Sequence[str]) -> int:
    """Do what words[0] says: "facts", "run" or "serve"."""
    if list(words) == ["facts"]:
        print(FACTS + json.dumps(facts()), flush=True)
        return 0
    processes.become_subreaper()
    try:
        return _Agent(serves=list(words) == ["serve"]).run()
    finally:
        processes.kill_descendants()


class _Worker:
    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.pipes = {}
        for kind, pipe in ((Kind.STDOUT, process.stdout), (Kind.STDERR, process.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self.pipes[pipe.fileno()] = (kind, pipe)


class _Agent:
    """Serves one connection. Must own its process, as it reaps every child there is."""

    def __init__(self, *, serves: bool) -> None:
        self._serves = serves
        self._selector = selectors.DefaultSelector()
        self._reader = FrameReader()
        self._unsent = bytearray(MARK)
        self._workers: dict[int, _Worker] = {}  # by number
        self._running: dict[int, _Worker] = {}  # by pid
        # By number: command, environment and open files, until it starts.
        self._waiting: dict[int, tuple[list[str], dict[str, str], list[int]]] = {}
        self._ordered = False
        self._launcher_gone = False
        self._told_to_end = False
        self._deadline: float | None = None
        self._alive_at = time.monotonic() + _ALIVE_SECONDS

    def run(self) -> int:
        wakeup = self._watch_children()
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        self._selector.register(0, selectors.EVENT_READ, self._hear)
        if self._serves:
            self._send(Kind.FACTS, 0, json.dumps(facts()).encode())
        while not self._is_over():
            self._start_next()
            self._register_output()
            for key, _ in self._selector.select(self._time_left()):
                if key.fd == wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup, 4096)
                else:
                    key.data()
            if self._told_to_end:
                self._lose_launcher()
            self._collect()
            if time.monotonic() >= self._alive_at:
                self._alive_at = time.monotonic() + _ALIVE_SECONDS
                self._send(Kind.ALIVE, 0, b"")
            if self._launcher_gone and self._deadline and time.monotonic() >= self._deadline:
                break
        return 0

    def _watch_children(self) -> int:
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # sshd sends SIGHUP when the connection ends; stdin ends as well. If the agent ignored
        # SIGHUP, so would the workers.
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)

        def note(_number: int, _frame: object) -> None:
            self._told_to_end = True

        # If a user ends the agent, or its host shuts down, the agent ends the workers.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)
        self._selector.register(read_end, selectors.EVENT_READ)
        return read_end

    def _is_over(self) -> bool:
        if self._running or self._waiting or self._serves or not self._ordered:
            return self._launcher_gone and not self._running
        if self._launcher_gone:
            return True
        if self._deadline is None:
            self._deadline = time.monotonic() + DRAIN_SECONDS
        late = time.monotonic() >= self._deadline
        pipes = any(worker.pipes for worker in self._workers.values())
        return (late or not pipes) and not self._unsent

    def _time_left(self) -> float:
        if self._waiting:
            return 0.0
        left = max(0.0, self._alive_at - time.monotonic())
        if self._deadline is None or time.monotonic() >= self._deadline:
            return left  # past the deadline it only waits for unsent data
        return min(left, self._deadline - time.monotonic())

    # -- from the launcher --

    def _hear(self) -> None:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        try:
            for frame in self._reader.feed(data):
                self._obey(frame)
        except (FrameError, ValueError, KeyError) as error:
            print(f"hvdtune: the launcher sent {error}", file=sys.stderr)
            data = b""
        if not data:
            self._lose_launcher()

    def _obey(self, frame: Frame) -> None:
        if frame.kind == Kind.START and (self._serves or not self._ordered):
            self._ordered = True
            self._start(json.loads(frame.payload))
        elif frame.kind in (Kind.SIGNAL, Kind.SIGNAL_GROUP):
            worker = self._workers.get(frame.number)
            if (
                frame.kind == Kind.SIGNAL_GROUP
                and self._waiting.pop(frame.number, None) is not None
            ):
                self._send(Kind.EXIT, frame.number, b"-" + frame.payload)
            if worker is not None and worker.process.pid in self._running:
                send = os.killpg if frame.kind == Kind.SIGNAL_GROUP else os.kill
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    send(worker.process.pid, int(frame.payload))

    def _lose_launcher(self) -> None:
        if self._launcher_gone:
            return
        self._launcher_gone = True
        self._waiting.clear()
        self._selector.unregister(0)
        self._unsent.clear()
        self._deadline = time.monotonic() + GRACE_SECONDS
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGTERM)

    # -- workers --

    def _start(self, order: dict[str, Any]) -> None:
        """Have workers started: {"command": …, "directory": …, "shared": {…}, "places": {…}}.

        "shared" are variables of all workers, "places" those of each, by number. "descriptors" may
        name the agent's open files that its workers inherit.
        """
        environment = {**os.environ, **order["shared"]}
        environment.update(with_alias(environment))
        try:
            os.chdir(order["directory"])
        except OSError as error:
            print(
                f"{order['directory']}: {error.strerror}; the command runs in {os.getcwd()}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        command, files = order["command"], order.get("descriptors", [])
        for number, place in sorted((int(n), place) for n, place in order["places"].items()):
            self._waiting[number] = (command, {**environment, **place}, files)

    def _start_next(self) -> None:
        """Start one worker; between two workers the agent reads its other input."""
        if not self._waiting:
            return
        number = next(iter(self._waiting))
        try:
            worker = _Worker(number, start_worker(*self._waiting.pop(number)))
        except StartError as error:
            self._send(Kind.NOT_STARTED, number, f"{error.status} {error}".encode())
            return
        self._workers[number] = self._running[worker.process.pid] = worker
        self._send(Kind.STARTED, number, str(worker.process.pid).encode())

    def _collect(self) -> None:
        for pid, code in processes.reap_all():
            worker = self._running.pop(pid, None)
            if worker is None:
                continue  # an orphan of a worker's
            worker.process.returncode = code
            for descriptor in list(worker.pipes):
                # A descendant may write for ever.
                for _ in range(_MOST_READS):
                    if not self._pass_on(worker, descriptor):
                        break
            self._send(Kind.EXIT, worker.number, str(code).encode())
            if self._serves:  # before the job's end nothing else ends what the worker has started
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _pass_on(self, worker: _Worker, descriptor: int) -> bool:
        """Send on the content of a pipe; return whether there may be more."""
        kind, pipe = worker.pipes[descriptor]
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return False
        if data:
            self._send(kind, worker.number, data)
            return True
        with contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)
        del worker.pipes[descriptor]
        pipe.close()
        return False

    # -- to the launcher --

    def _send(self, kind: Kind, number: int, payload: bytes) -> None:
        if not self._launcher_gone:
            self._unsent += encode(kind, number, payload)

    def _register_output(self) -> None:
        """Wait for the launcher to take what is unsent; read workers' output only if there is room.

        What is in the pipes of a worker that ended is sent in any case.
        """
        self._watch(1, bool(self._unsent), selectors.EVENT_WRITE, self._flush)
        room = len(self._unsent) < _MOST_UNSENT
        for worker in self._workers.values():
            for descriptor in worker.pipes:

                def pass_on(worker: _Worker = worker, descriptor: int = descriptor) -> None:
                    self._pass_on(worker, descriptor)

                self._watch(descriptor, room, selectors.EVENT_READ, pass_on)

    def _watch(self, descriptor: int, wanted: bool, event: int, do: Any) -> None:
        watched = descriptor in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(descriptor, event, do)
        elif watched and not wanted:
            self._selector.unregister(descriptor)

    def _flush(self) -> None:
        try:
            del self._unsent[: os.write(1, self._unsent[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self._lose_launcher()
