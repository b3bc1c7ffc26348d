"""What a program tells its Spark tasks, and how a task starts a rank from that.

Between a task and its rank is the agent that also starts ranks over ssh. If the task is killed, the
agent ends the rank and everything the rank has started.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from hvdtune.bootstrap import python_command
from hvdtune.launch import placed
from hvdtune.launch.remote import identity
from hvdtune.launch.remote.frames import Kind, encode

_PYTHON_PATH = "HOROVOD_SPARK_PYTHONPATH"
_DIRECTORY = "HOROVOD_SPARK_WORK_DIR"


class Order(NamedTuple):
    """The program's instructions for its tasks.

    `call` is the pickled (function, args, kwargs), `path` and `argv` the program's sys.path and
    sys.argv, `job` the job's name and key, `environment` the user's variables. The program listens
    at `port` of `addresses`, on `machine`, for tasks that know `key`. `timeline` is a file's name
    or "".
    """

    call: bytes
    path: list[str]
    argv: list[str]
    job: dict[str, str]
    environment: dict[str, str]
    interfaces: list[str]
    executable: str
    addresses: list[str]
    port: int
    key: str
    machine: str
    timeline: str

    @property
    def is_here(self) -> bool:
        """Whether this task is on the program's machine."""
        return identity.machine() == self.machine

    def reachable_at(self) -> list[str]:
        """The addresses at which this task can reach the program."""
        return ["127.0.0.1"] if self.is_here else self.addresses

    def environment_of(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment of this task's rank; `variables` give the rank its place."""
        found = placed.environment({**os.environ, **self.environment}, variables)
        found.setdefault("PYTHONUNBUFFERED", "1")
        found.setdefault(_DIRECTORY, os.getcwd())
        return found

    def write_call(self, file: IO[bytes]) -> None:
        """Write the file that `hvdtune.launch.function.worker` reads."""
        first = {**os.environ, **self.environment}.get(_PYTHON_PATH, "").split(os.pathsep)
        path = [*filter(None, first), *sys.path, *(self.path if self.is_here else ())]
        pickle.dump((list(dict.fromkeys(path)), self.argv), file)
        file.write(self.call)
        file.flush()

    def start_frame(
        self, number: int, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> bytes:
        """The frame that starts a rank; `descriptors` are the files for its call and result."""
        command = python_command(
            "hvdtune.launch.function.worker",
            "--own",
            *map(str, descriptors),
            executable=self.executable or None,
        )
        start = {
            "command": command,
            "directory": environment[_DIRECTORY],
            "shared": {},
            "places": {number: dict(environment)},
            "descriptors": list(descriptors),
        }
        return encode(Kind.START, 0, json.dumps(start).encode())


# fmt: off
def order_for(
    call: bytes, job: dict[str, str], environment: Mapping[str, object], interfaces: list[str],
    executable: str, addresses: list[str], port: int, key: str, timeline: str,
) -> Order:
    """The order of this program."""
    return Order(
        call=call,
        path=[os.path.abspath(entry) if entry else entry for entry in sys.path],
        argv=list(sys.argv),
        job=job,
        environment={name: str(value) for name, value in environment.items()},
        interfaces=interfaces,
        executable=executable,
        addresses=addresses,
        port=port,
        key=key,
        machine=identity.machine(),
        timeline=timeline,
    )
# fmt: on


def start_agent(verb: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """An agent (`hvdtune.launch.remote.agent`) that inherits these files."""
    return subprocess.Popen(
        python_command("hvdtune.launch.remote.agent", verb),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
        start_new_session=True,  # protects it from a terminal's signals
        bufsize=0,
    )
