"""The workers of one other host, as the launcher sees them: one ssh connection to their agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local import processes
from hvdtune.launch.local.exports import exportable
from hvdtune.launch.local.output import LinePrefixer
from hvdtune.launch.local.spawn import StartError
from hvdtune.launch.remote.frames import Frame, FrameError, FrameReader, Kind, encode

# Between a complaint and the end that it explains.
_REASON_SECONDS = 3.0


class Connection:
    """An ssh client that runs the agent on a host; it is killed when the launcher ends.

    Nothing here waits: `input`, `output` and `errors` are for a selector, which calls `pump`,
    `frames` and `complaints`.
    """

    def __init__(self, hostname: str, command: Sequence[str]) -> None:
        self.hostname = hostname
        self.is_silent = True  # nothing has arrived from the agent yet
        self._closed = False
        self._complaint = ""
        self._complained_at = 0.0
        self._reader = FrameReader(after_mark=True)
        self._unsent = bytearray()
        self._complaints = LinePrefixer(lambda: f"hvdtune run: {hostname}: ".encode())
        parent = os.getpid()

        def in_child() -> None:
            os.setsid()  # no terminal to ask the user on
            processes.die_with_parent(signal.SIGKILL, parent)

        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, preexec_fn=in_child,
            )  # fmt: skip
        except OSError as error:
            raise StartError.of(command[0], error) from None
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        descriptors = []
        for pipe in pipes:
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            descriptors.append(pipe.fileno())
        self.input, self.output, self.errors = descriptors

    @property
    def pid(self) -> int:
        """The ssh client's pid."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Whether `close` has been called: nothing reaches the host any more."""
        return self._closed

    @property
    def has_unsent(self) -> bool:
        """Whether `pump` has something to do."""
        return bool(self._unsent)

    def start(
        self,
        command: Sequence[str],
        shared: Mapping[str, str],
        places: Mapping[int, Mapping[str, str]],
    ) -> None:
        """Tell the agent to start workers, with the launcher's exportable variables.

        `places` has each worker's own variables, by its number.
        """
        try:
            directory = os.getcwd()
        except FileNotFoundError:
            raise LaunchError(
                "the folder that this was started in is gone: enter another"
            ) from None
        order = {
            "command": list(command),
            "directory": directory,
            "shared": {name: shared[name] for name in exportable(shared)},
            "places": places,
        }
        self._unsent += encode(Kind.START, 0, json.dumps(order).encode())

    def signal(self, worker: int, number: int, group: bool) -> None:
        """Send a worker, or its process group, a signal."""
        kind = Kind.SIGNAL_GROUP if group else Kind.SIGNAL
        self._unsent += encode(kind, worker, str(int(number)).encode())
        self.pump()

    def end(self) -> None:
        """End the ssh client at once: its host does not answer."""
        self._process.kill()

    def close(self) -> None:
        """Send and read nothing any more, except complaints."""
        self._closed = True
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def pump(self) -> None:
        """Send what the connection accepts."""
        if self._closed:
            self._unsent.clear()
        try:
            while self._unsent:
                del self._unsent[: os.write(self.input, self._unsent[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # `frames` notices the end

    def frames(self) -> list[Frame] | None:
        """The frames that have arrived from the agent; None at the end."""
        try:
            data = os.read(self.output, 65536)
        except BlockingIOError:
            return []
        if not data:
            return None
        self.is_silent = False
        try:
            return list(self._reader.feed(data))
        except FrameError as error:
            self.complain(f"the host's output is not the agent's: {error}")
            return None

    def complaints(self) -> tuple[bytes, bool]:
        """New stderr of ssh and the agent, for the launcher's; and whether there may be more."""
        try:
            data = os.read(self.errors, 65536)
        except BlockingIOError:
            return b"", True
        lines = self._complaints.feed(data) if data else self._complaints.finish()
        said = [line for line in lines.decode("utf-8", "replace").splitlines() if line.strip()]
        if said:
            self.complain(said[-1].removeprefix(f"hvdtune run: {self.hostname}: "))
        return lines, bool(data)

    def complain(self, sentence: str) -> None:
        """Note a sentence that explains the end of the connection, if it ends now."""
        self._complaint, self._complained_at = sentence, time.monotonic()

    @property
    def said(self) -> str:
        """The last complaint, however old; "" if there is none."""
        return self._complaint.rstrip(".")

    @property
    def last_complaint(self) -> str:
        """A complaint of a moment ago, or ""; an older one does not explain an end."""
        fresh = time.monotonic() - self._complained_at < _REASON_SECONDS
        return self._complaint.rstrip(".") if fresh else ""

    def lost(self) -> str:
        """Why its workers are gone, as the end of a sentence that begins with the rank."""
        said = self.last_complaint
        why = f" ({said})" if said else ""
        return f"was lost: the ssh connection to {self.hostname} has ended{why}"
