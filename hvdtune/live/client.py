"""Finding the running jobs of this user on this host, and asking one of them.

Rank 0 of every job listens at the abstract Unix socket `hvdtune-control/UID/PID/NUMBER`
(native/transport/control/control_server.h). It leaves nothing in a file system, and a job that has
ended is gone from the list. Both sides check that the other one belongs to the same user.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_PREFIX = "hvdtune-control/"
_LISTENS = 0x10000  # in the flags column of /proc/net/unix
_PIECE = 64 << 10
#: Where jobs are looked for.
WHERE = "on this host (ask where rank 0 runs, and in its container)"
#: How long a job may take to answer, seconds. Its ranks have two of them to send their stacks.
PATIENCE_S = 10.0
#: How long an elastic job may have no rank 0, seconds.
REFORMING_S = 5.0


class JobError(OSError):
    """There is no such job, it is another user's, or it has ended meanwhile."""


class SilentJobError(JobError):
    """The job runs, but does not answer."""


@dataclass(frozen=True)
class Endpoint:
    """Where a job listens: its socket's name, the user it belongs to, and rank 0's process."""

    name: str
    uid: int
    pid: int


def endpoints(table: str = "/proc/net/unix") -> list[Endpoint]:
    """Jobs of all users in this network namespace, ordered by process id of rank 0.

    Raises OSError if the system's table of sockets cannot be read.
    """
    found = set()
    with open(table, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            columns = line.split(maxsplit=7)
            if len(columns) < 8 or not columns[7].startswith("@" + _PREFIX):
                continue
            name = columns[7].strip()[1:]
            parts = name.split("/")
            # Connections to the socket also have its name.
            # Anybody may choose such a name for a socket.
            is_ours = len(parts) == 4 and parts[1].isdecimal() and parts[2].isdecimal()
            with contextlib.suppress(ValueError):  # a name may contain a line's end
                if is_ours and int(columns[3], 16) & _LISTENS:
                    found.add(Endpoint(name, int(parts[1]), int(parts[2])))
    return sorted(found, key=lambda endpoint: endpoint.pid)


def ask(endpoint: Endpoint, question: str, timeout_s: float = PATIENCE_S) -> str:
    """The job's answer.

    Raises JobError when it has ended, belongs to another user or does not answer; ValueError with
    the job's own sentence when it refuses.
    """
    who = f"job of process {endpoint.pid}"
    deadline = time.monotonic() + timeout_s
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect("\0" + endpoint.name)
            if _uid_of(connection) != os.getuid():
                raise JobError(f"the {who} belongs to another user (uid {endpoint.uid})")
            connection.send(question.encode())
            while piece := connection.recv(_PIECE):
                answer += piece
                connection.settimeout(max(0.001, deadline - time.monotonic()))
        except TimeoutError:
            raise SilentJobError(
                f"the {who} has not answered within {timeout_s:g} s: is it stopped?"
            ) from None
        except (ConnectionError, BrokenPipeError):
            answer.clear()
    if not answer:
        raise JobError(f"the {who} has ended")
    text = answer[1:].decode("utf-8", "replace")
    if answer[:1] == b"-":
        raise ValueError(text)
    return text


def status(endpoint: Endpoint) -> dict[str, Any]:
    """The job's status, see docs/live.md. Raises as `ask`."""
    found = json.loads(ask(endpoint, "status"))
    assert isinstance(found, dict)
    return found


def start_timeline(endpoint: Endpoint, path: str, mark_cycles: bool = False) -> str:
    """Make the job record to `path`, relative to this process's folder. Returns the job's answer.

    Raises as `ask`: ValueError if the job was started in a way that it cannot record.
    """
    asked = {"path": os.path.abspath(path), "mark_cycles": mark_cycles}
    return ask(endpoint, f"timeline-start {json.dumps(asked)}")


def stop_timeline(endpoint: Endpoint) -> str:
    """End the job's recording. Returns the job's answer. Raises as `ask`."""
    return ask(endpoint, "timeline-stop", timeout_s=6 * PATIENCE_S)


def jobs() -> list[tuple[Endpoint, dict[str, Any]]]:
    """This user's running jobs with their status, without those that end meanwhile."""
    found = []
    for endpoint in endpoints():
        if endpoint.uid != os.getuid():
            continue
        try:
            found.append((endpoint, status(endpoint)))
        except SilentJobError:
            found.append((endpoint, {"job": "", "program": "(does not answer)"}))
        except (JobError, ValueError):
            continue
    return found


def find(job: str | None) -> Endpoint:
    """The job with this id, beginning of an id, or process id of rank 0; None: the only job.

    Raises JobError when there is none, ValueError when there are several.
    """
    running = jobs()
    if job is None:
        chosen = running
    else:
        chosen = [one for one in running if job in (one[1].get("job"), str(one[0].pid))]
        chosen = chosen or [one for one in running if str(one[1].get("job")).startswith(job)]
    if len(chosen) == 1:
        return chosen[0][0]
    if chosen:
        raise ValueError(
            "several jobs are meant; choose one with --job PID: "
            + "; ".join(describe(*one) for one in chosen)
        )
    if job is None:
        raise JobError(f"no job of yours is running {WHERE}")
    for endpoint in endpoints():
        if str(endpoint.pid) == job and endpoint.uid != os.getuid():
            raise JobError(f"job {job} belongs to another user (uid {endpoint.uid})")
    known = "; ".join(describe(*one) for one in running)
    raise JobError(
        f"no job {job!r} of yours is running {WHERE}" + (f"; there are: {known}" if known else "")
    )


def next_generation(
    endpoint: Endpoint, elastic: str, tell: Callable[[str], None] = lambda _: None
) -> Endpoint | None:
    """Where the elastic job of this name listens now; None if it has ended.

    While the process that was its rank 0 lives, the job may be forming again; after `REFORMING_S`,
    `tell` gets a sentence about that. After that process has ended, another one has `REFORMING_S`
    to take its place.
    """
    began = time.monotonic()
    deadline = began + REFORMING_S
    told = False
    while True:
        for other, found in jobs():
            if other != endpoint and found.get("elastic") == elastic:
                return other
        now = time.monotonic()
        if os.path.exists(f"/proc/{endpoint.pid}"):
            deadline = now + REFORMING_S
            if now - began > REFORMING_S and not told:
                told = True
                tell(
                    f"Process {endpoint.pid} is in no job at present: either its job forms again, "
                    "or the process goes on without it. Ctrl-C ends this."
                )
        if now > deadline:
            return None
        time.sleep(0.1)


def describe(endpoint: Endpoint, found: dict[str, Any]) -> str:
    """ "4711 (train.py, 8 ranks, job 1f2e3d)"."""
    parts = [str(found.get("program", "?"))]
    if "size" in found:
        parts.append("1 rank" if found["size"] == 1 else f"{found['size']} ranks")
    if found.get("job"):
        parts.append(f"job {found['job']}")
    return f"{endpoint.pid} ({', '.join(parts)})"


def _uid_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return int(struct.unpack("3i", credentials)[1])
