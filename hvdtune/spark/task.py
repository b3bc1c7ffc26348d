"""What a Spark task does: it has a child run the function as one rank, and returns the result.

The task gathers what all tasks are (`BarrierTaskContext.allGather`), from which each works out the
same places. Between it and its child stands the agent that also starts ranks by ssh: it ends the
child, and whatever that has started, when the task is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from hvdtune.bootstrap import python_command
from hvdtune.launch import placed
from hvdtune.launch.allocation.hosts import Slot
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.job import BLAME_SECONDS, SURVIVORS_SECONDS
from hvdtune.launch.local.output import WorkerStream
from hvdtune.launch.remote import identity
from hvdtune.launch.remote.frames import Frame, FrameReader, Kind, encode
from hvdtune.launch.worker import Worker
from hvdtune.spark.link import Link

#: In the text of what a failing task raises, before the JSON that says how its rank ended.
FAILURE = "hvdtune failure: "
#: How a rank's end is worded that nobody has seen.
LOST = "was lost: the Spark task that ran it has ended"
#: The rows that a task returns: a part of what it has, of at most so many bytes.
SCHEMA = "rank int, name string, data binary"
RESULT = "result"
_PIECE = 2**20
_GPUS = "HVDTUNE_SPARK_GPUS"
_IGNORE_GPUS = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"
_PYTHON_PATH = "HOROVOD_SPARK_PYTHONPATH"
_DIRECTORY = "HOROVOD_SPARK_WORK_DIR"


class Order(NamedTuple):
    """What the program tells its tasks.

    `call` is the pickled (function, args, kwargs), `path` and `argv` the program's sys.path and
    sys.argv, `job` the job's name and key, `environment` what the user gave. The program listens at
    `port` of `addresses`, for whoever knows `key`, on `machine`. `timeline` is a file's name or "".
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


def get_available_devices() -> list[str]:
    """The GPUs that Spark has given to this rank: indices of those that it sees, as text.

    Empty if Spark has none to give (`spark.task.resource.gpu.amount`). With
    HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX=1 they are what Spark calls them: nothing is done with
    them.
    """
    found = os.environ.get(_GPUS, "")
    return found.split(",") if found else []


def work(order: Order) -> Iterator[tuple[int, str, bytes]]:
    """Run one rank to its end and yield what it has returned: (rank, name, bytes), in pieces.

    Raises RuntimeError when the rank fails.
    """
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    task = context.partitionId()
    address = _host_of(context.getTaskInfos()[task].address)
    gpus = _gpus(context.resources())
    ignored = {**os.environ, **order.environment}.get(_IGNORE_GPUS, "0") not in ("", "0")
    facts = placed.this_process(
        # Containers of one machine may not share what makes it one.
        host="/".join(filter(None, (identity.machine(), os.environ.get("CONTAINER_ID")))),
        address=address,
        gpus=[] if ignored else gpus,
    )
    addresses = ["127.0.0.1"] if facts.machine == order.machine else order.addresses
    link = Link.open(addresses, order.port, order.key, task, facts.hostname)
    try:
        told = context.allGather(json.dumps(facts._asdict()))
        processes = [placed.PlacedProcess(**json.loads(text)) for text in told]
        try:
            variables = placed.environments(processes, order.job, order.interfaces)[task]
        except LaunchError as error:
            raise _NotStarted(str(error)) from None
        visible = variables.get(placed.GPUS, "").split(",")
        mine = gpus if ignored else [str(visible.index(gpu)) for gpu in gpus]
        rank = _Rank(order, facts.hostname, {**variables, _GPUS: ",".join(mine)}, link)
        yield from rank.run(context)
    except _NotStarted as error:
        if link is not None:
            link.send(Kind.NOT_STARTED, task, error.why.encode())
        raise
    finally:
        if link is not None:
            link.close()


def _host_of(address: str) -> str:
    """Spark's "host:port" without the port."""
    return address.rpartition(":")[0].strip("[]")


def _gpus(resources: Mapping[str, Any]) -> list[str]:
    found = resources.get("gpu")
    return [str(address) for address in found.addresses] if found is not None else []


class _NotStarted(RuntimeError):
    """The rank could not be started."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why}\n{FAILURE}{json.dumps({'why': why})}")


def blame_seconds(worker: Worker) -> float:
    """How long to look for a better suspect than this worker, which has failed."""
    return (0.0, BLAME_SECONDS, SURVIVORS_SECONDS)[worker.innocence()]


def _ended(worker: Worker) -> RuntimeError:
    failure = worker.failure()
    return RuntimeError(f"{failure.describe()}{FAILURE}{json.dumps(failure._asdict())}")


class _Rank:
    """The child of this task."""

    def __init__(
        self, order: Order, hostname: str, variables: Mapping[str, str], link: Link | None
    ) -> None:
        self._order = order
        self._link = link
        self.rank = int(variables["HOROVOD_RANK"])
        names = ("SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        numbers = (int(variables[f"HOROVOD_{name}"]) for name in names)
        self._worker = Worker(self.rank, Slot(hostname, self.rank, *numbers))
        self._environment = placed.environment({**os.environ, **order.environment}, variables)
        self._environment.setdefault("PYTHONUNBUFFERED", "1")
        self._directory = self._environment.setdefault(_DIRECTORY, os.getcwd())
        self._recording: Path | None = None
        if order.timeline:
            folder = f"hvdtune-{order.job['HVDTUNE_JOB_ID']}"
            self._recording = Path(tempfile.gettempdir(), folder, order.timeline)
            self._environment["HOROVOD_TIMELINE"] = str(self._recording)
        self._streams = {
            kind: WorkerStream(self.rank, name, None, self._worker.tail)
            for kind, name in ((Kind.STDOUT, "stdout"), (Kind.STDERR, "stderr"))
        }

    def run(self, context: Any) -> Iterator[tuple[int, str, bytes]]:
        if self._recording is not None:
            self._recording.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile() as call, tempfile.TemporaryFile() as result:
            pickle.dump((self._search_path(), self._order.argv), call)
            call.write(self._order.call)
            call.flush()
            self._run_child([call.fileno(), result.fileno()])
            yield from self._pieces(RESULT, result)
        if self._recording is not None:
            context.barrier()  # all have ended: rank 0 has joined what is on its host
            yield from self._recorded(self._recording)

    def _run_child(self, descriptors: list[int]) -> None:
        """Start the child, pass on what it prints, and wait for its end."""
        agent = subprocess.Popen(
            python_command("hvdtune.launch.remote.agent", "run"),
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,  # signals of a terminal's are not for it
            bufsize=0,
        )
        assert agent.stdin is not None
        assert agent.stdout is not None
        try:
            order = {
                "command": python_command(
                    "hvdtune.launch.function.worker",
                    "--own",
                    *map(str, descriptors),
                    executable=self._order.executable or None,
                ),
                "directory": self._directory,
                "shared": {},
                "places": {self.rank: {}},
                "descriptors": descriptors,
            }
            agent.stdin.write(encode(Kind.START, 0, json.dumps(order).encode()))
            self._listen(agent.stdout)
        finally:
            agent.stdin.close()  # if it still runs, it ends itself and the child
            agent.wait()
            agent.stdout.close()
        for stream in self._streams.values():
            stream.finish()
        self._require_success()

    def _listen(self, pipe: IO[bytes]) -> None:
        reader = FrameReader(after_mark=True)
        while data := os.read(pipe.fileno(), 65536):
            for frame in reader.feed(data):
                self._hear(frame)

    def _hear(self, frame: Frame) -> None:
        if frame.kind in self._streams:
            shown = self._streams[frame.kind].take(frame.payload)
            if self._link is None and shown:  # then it is in the executor's log
                os.write(2, shown)
        elif frame.kind == Kind.STARTED:
            self._worker.pid = int(frame.payload)
        elif frame.kind == Kind.EXIT:
            self._worker.code = int(frame.payload)
        elif frame.kind == Kind.NOT_STARTED:
            why = frame.payload.decode("utf-8", "replace").partition(" ")[2]
            raise _NotStarted(why)
        if self._link is not None and frame.kind != Kind.ALIVE:
            self._link.send(frame.kind, frame.number, frame.payload)

    def _require_success(self) -> None:
        if self._worker.code is None:
            self._worker.code, self._worker.loss = 255, LOST
        if self._worker.code != 0:
            # Spark ends the job with the first task that fails: it shall be the one to blame.
            time.sleep(blame_seconds(self._worker))
            raise _ended(self._worker)

    def _search_path(self) -> list[str]:
        """Where the child looks for modules: as the task, and as the program if that is here."""
        first = self._environment.get(_PYTHON_PATH, "")
        there = self._order.path if identity.machine() == self._order.machine else []
        return list(dict.fromkeys([*filter(None, first.split(os.pathsep)), *sys.path, *there]))

    def _pieces(self, name: str, file: IO[bytes]) -> Iterator[tuple[int, str, bytes]]:
        file.seek(0)
        while piece := file.read(_PIECE):
            yield self.rank, name, piece

    def _recorded(self, recording: Path) -> Iterator[tuple[int, str, bytes]]:
        name = recording
        if self.rank:
            name = recording.with_name(f"{recording.stem}.rank{self.rank}{recording.suffix}")
        with contextlib.suppress(FileNotFoundError):
            with name.open("rb") as file:
                yield from self._pieces(name.name, file)
            name.unlink()
        with contextlib.suppress(OSError):
            recording.parent.rmdir()  # the last one finds it empty
