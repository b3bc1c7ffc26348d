"""A Spark task: a child runs the function as one rank, and the task returns the result.

The task gathers the facts of all tasks (`BarrierTaskContext.allGather`), from which each computes
the same places.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from hvdtune.launch import placed
from hvdtune.launch.allocation.hosts import Slot
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.job import BLAME_SECONDS, SURVIVORS_SECONDS
from hvdtune.launch.local.output import WorkerStream
from hvdtune.launch.remote import identity
from hvdtune.launch.remote.frames import Frame, FrameReader, Kind
from hvdtune.launch.remote.link import Link
from hvdtune.launch.worker import Worker
from hvdtune.spark.order import Order, start_agent

#: In a failing task's error text, before the JSON that says how its rank ended.
FAILURE = "hvdtune failure: "
#: The description of a rank's end that nobody has seen.
LOST = "was lost: the Spark task that ran it has ended"
#: The rows that a task returns: each is a piece of its data, of limited size.
SCHEMA = "rank int, name string, data binary"
RESULT = "result"
_PIECE = 2**20
_GPUS = "HVDTUNE_SPARK_GPUS"
_IGNORE_GPUS = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"


def get_available_devices() -> list[str]:
    """The GPUs that Spark has given to this rank: indices of those that it sees, as text.

    Empty if Spark has none to give (`spark.task.resource.gpu.amount`). With
    HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX=1 they are Spark's own names; CUDA_VISIBLE_DEVICES is not
    changed.
    """
    found = os.environ.get(_GPUS, "")
    return found.split(",") if found else []


def work(order: Order) -> Iterator[tuple[int, str, bytes]]:
    """Run one rank to its end and yield its result: (rank, name, bytes), in pieces.

    Raises RuntimeError when the rank fails.
    """
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    task = context.partitionId()
    address = _host_of(context.getTaskInfos()[task].address)
    gpus = _gpus(context.resources())
    ignored = ignores_gpus(order)
    facts = placed.this_process(
        # Containers of one machine count as different hosts.
        host="/".join(filter(None, (identity.machine(), os.environ.get("CONTAINER_ID")))),
        address=address,
        gpus=[] if ignored else gpus,
    )
    link = Link.open(order.reachable_at(), order.port, order.key, task, facts._asdict())
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


def ignores_gpus(order: Order) -> bool:
    """Whether the ranks' CUDA_VISIBLE_DEVICES stays as it is."""
    return {**os.environ, **order.environment}.get(_IGNORE_GPUS, "0") not in ("", "0")


def own_gpus(order: Order, resources: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a rank that sees only the GPUs of its own task."""
    gpus = _gpus(resources)
    if ignores_gpus(order):
        return {_GPUS: ",".join(gpus)}
    visible = {placed.GPUS: ",".join(gpus)} if gpus else {}
    return {_GPUS: ",".join(map(str, range(len(gpus)))), **visible}


class _NotStarted(RuntimeError):
    """The rank could not be started."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why}\n{FAILURE}{json.dumps({'why': why})}")


def blame_seconds(worker: Worker) -> float:
    """How long to wait for a likelier culprit than this worker, which has failed."""
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
        self._environment = order.environment_of(variables)
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
        try:
            with tempfile.TemporaryFile() as call, tempfile.TemporaryFile() as result:
                self._order.write_call(call)
                self._run_child([call.fileno(), result.fileno()])
                yield from self._pieces(RESULT, result)
            if self._recording is not None:
                # All ranks have ended, and rank 0 has joined its host's recordings.
                context.barrier()
                yield from self._recorded(self._own(self._recording))
        finally:
            if self._recording is not None:
                with contextlib.suppress(OSError):
                    self._own(self._recording).unlink()
                with contextlib.suppress(OSError):
                    self._recording.parent.rmdir()  # the last one finds it empty

    def _run_child(self, descriptors: list[int]) -> None:
        """Start the child, pass on its output, and wait for its end."""
        agent = start_agent("run", descriptors)
        assert agent.stdin is not None
        assert agent.stdout is not None
        try:
            agent.stdin.write(self._order.start_frame(self.rank, self._environment, descriptors))
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
            if self._link is None and shown:  # without a link, output goes to the executor's log
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
            # Spark blames the first task that fails, so it should be the culprit.
            time.sleep(blame_seconds(self._worker))
            raise _ended(self._worker)

    def _pieces(self, name: str, file: IO[bytes]) -> Iterator[tuple[int, str, bytes]]:
        file.seek(0)
        while piece := file.read(_PIECE):
            yield self.rank, name, piece

    def _own(self, recording: Path) -> Path:
        if not self.rank:
            return recording
        return recording.with_name(f"{recording.stem}.rank{self.rank}{recording.suffix}")

    def _recorded(self, own: Path) -> Iterator[tuple[int, str, bytes]]:
        with contextlib.suppress(FileNotFoundError), own.open("rb") as file:
            yield from self._pieces(own.name, file)
