"""Captures of jobs that never ran: described in numbers, with truths planted in them.

A Job says how many ranks compute for how long, which tensors they submit, and what is wrong: who is
late and when, how slow the coordinator's cycle is, what is not overlapped. `simulate` plays it with
the engine's rules (native/engine/coordination/coordinator.cc): a tensor is ready once all ranks
have submitted it; ready tensors leave in a batch that is full, or whose cycle is over, or because
somebody waits; batches run one after another, on all ranks together.

`recording(job)` is what a reader should make of it; `write_capture(job, folder)` writes the files
that the recorder would have written, every rank by its own clock. `step_seconds(job)` of the same
job without a fault (`dataclasses.replace`) is what fixing the fault is worth.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdtune.timeline.record.layout import (
    BATCH,
    COUNTER,
    DTYPES,
    KINDS,
    MARK,
    NONE,
    PICKLING,
    READY,
    REASONS,
    STREAMS,
    TENSOR,
    WAIT,
    ClockReading,
    Flag,
    Identity,
    Mark,
    Name,
    RankRecording,
    Recording,
)
from support.recordings.synthetic_job import Call, Job, Late, Stall, Tensor, planted, tensors

__all__ = ["Call", "Job", "Late", "Stall", "Tensor", "planted", "tensors"]

#: Rank 0's CLOCK_MONOTONIC when recording starts, and the wall clock at that moment.
START_NS = 5_000_000_000_000
START_WALL_US = 1_780_000_000_000_000
CHUNK = 256 << 10  # what is packed before the first reduction can begin
#: What the simulation says of a batch; "packed" and "scheduled": see _Play.tables.
COLUMNS = (
    *("scheduled", "first_ready", "packed", "end", "bytes", "tensors"),
    *("process_set", "kind", "dtype", "reason"),
)


@dataclass
class Simulated:
    """What happened: per rank and stream an array in rank 0's clock, and the step times."""

    streams: dict[int, dict[str, np.ndarray]]
    texts: list[str]
    step_ends: np.ndarray  # [rank, step] ns
    begin: int
    end: int


def simulate(job: Job) -> Simulated:
    """Play the job."""
    play = _Play(job)
    for step in range(1, job.steps + 1):
        play.step(step)
    return play.result()


class _Play:
    def __init__(self, job: Job) -> None:
        self.job, self.named = job, job.named
        self.random = np.random.default_rng(job.seed)
        self.now = np.full(job.ranks, START_NS + 1_000_000, np.int64)  # the ranks' steps begin
        self.free = np.array(self.now)  # the ranks' communication threads
        self.batches: list[tuple[int, ...]] = []  # COLUMNS
        self.begins: list[np.ndarray] = []  # of each batch: [rank]
        self.members: list[list[int]] = []
        self.submitted: list[np.ndarray] = []  # of each batch: [rank, tensor]
        self.ready: list[np.ndarray] = []
        self.waits: list[np.ndarray] = []
        self.step_ends: list[np.ndarray] = []
        self.pickled: list[list[tuple[int, float, int, int]]] = [[] for _ in range(job.ranks)]
        self.lost = np.zeros(job.ranks, np.int64)  # in the step, blocked or for calls only
        self.depth: list[tuple[int, float, int]] = []
        self.marks: list[list[tuple[int, int, int, int]]] = [[] for _ in range(job.ranks)]
        self.texts: list[str] = []
        self.late_in: tuple[int, list[Late]] = (0, [])  # those of a step
        self.delays = np.array(
            [_ns(job.schedule) + _ns(2e-6) * r for r in range(job.ranks)], np.int64
        )
        settings = json.dumps(_settings(job))
        for rank in range(job.ranks):
            self.mark(rank, START_NS, Mark.SETTINGS, 0, settings)

    def mark(self, rank: int, time: int, kind: Mark, value: int = 0, text: str = "") -> None:
        if text and text not in self.texts:
            self.texts.append(text)
        number = self.texts.index(text) if text else NONE
        self.marks[rank].append((time, value, int(kind), number))

    def submissions(self, step: int) -> np.ndarray:
        """When each rank submits each tensor: [rank, tensor] ns."""
        job = self.job
        count = len(job.tensors)
        scale = 1 + job.noise * self.random.standard_normal(job.ranks).clip(-3, 3)
        self.lost[:] = 0
        for index, call in enumerate(job.calls, count):
            if step % call.every == 0:
                self.call(index, call, _ns(call.at * scale + self.late(step) * (call.at > 0)))
        together = max(count - job.alone, 1)
        reached = np.minimum(np.arange(1, count + 1) / together, 1)
        if not job.overlap:
            reached[:] = 1
        lasted = {
            "evaluation": job.evaluation + self.late(step, "evaluation"),
            "input": job.input + self.late(step, "input"),
            "before": job.before + self.late(step, "before"),
            "forward": job.forward * scale + self.late(step, "forward"),
            "backward": job.backward * scale + self.late(step, "backward"),
        }
        seconds = sum(lasted.values()) - lasted["backward"]
        self.mark_phases(lasted)
        seconds = seconds[:, None] + lasted["backward"][:, None] * reached[None, :]
        # A call takes a moment, so that the order of submission can be told.
        times = (self.now + self.lost)[:, None] + _ns(seconds) + np.arange(count) * 500
        for rank, order in enumerate(job.orders):
            times[rank, list(order)] = times[rank].copy()
        if job.stall is not None and job.stall.step == step:
            times[job.stall.rank, job.stall.tensor :] += _ns(job.stall.seconds)
            self.report_stall(times)
        return times

    def late(self, step: int, phase: str = "") -> np.ndarray:
        """How much longer each rank takes in a phase, s; in all of them if none is given."""
        late = np.zeros(self.job.ranks)
        job = self.job
        if self.late_in[0] != step:
            self.late_in = step, [one for one in job.late if one.concerns(step)]
        passes = {"forward": job.forward, "backward": job.backward}
        for one in self.late_in[1]:
            share = float(phase in ("", one.phase))
            if one.everywhere and phase:
                share = passes.get(phase, 0.0) / sum(passes.values())
            late[one.rank] += one.seconds * share
        return late

    def mark_phases(self, lasted: dict[str, np.ndarray]) -> None:
        """Up to the backward pass of a step that begins now."""
        if self.job.phases:
            at = self.now.copy()
            for phase, seconds in lasted.items():
                end = at + _ns(seconds)
                for rank in range(self.job.ranks):
                    if phase != "before" and end[rank] > at[rank]:
                        self.mark(rank, int(at[rank]), Mark.PHASE, 1, phase)
                        self.mark(rank, int(end[rank]), Mark.PHASE, 0, phase)
                at = end

    def call(self, index: int, call: Call, computed: np.ndarray) -> None:
        """All ranks wait for one operation."""
        job = self.job
        self.lost += _ns(call.gap)
        times = self.now + 2000 + computed + self.lost  # not at the very end of the step before
        for rank, time in enumerate(times.tolist() if call.pickles else ()):
            text = PICKLING.format(call.tensor.name.rpartition(".")[0])
            self.texts += [text] * (text not in self.texts)
            self.pickled[rank].append((time, call.gap, self.texts.index(text), 0))
        submitted = np.zeros((job.ranks, len(self.named)), np.int64)
        submitted[:, index] = times
        ready = int(times.max()) + _ns(job.announce)
        blocked = np.zeros(job.ranks, WAIT)
        blocked["begin"], blocked["name"] = times + 500, index
        blocked["end"] = self.run([index], ready, "blocked", submitted, ready) + 5000
        self.waits.append(blocked)
        self.lost = blocked["end"] - self.now - computed

    def report_stall(self, submitted: np.ndarray) -> None:
        stall = self.job.stall
        assert stall is not None
        others = [rank for rank in range(self.job.ranks) if rank != stall.rank]
        first = int(submitted[others, stall.tensor].min())
        if stall.seconds >= stall.reported_after:
            self.mark(
                0,
                first + _ns(stall.reported_after),
                Mark.STALL,
                0,
                f"ranks {', '.join(map(str, others))} wait for "
                f"{len(self.job.tensors) - stall.tensor} tensors "
                f"({self.job.tensors[stall.tensor].name}); missing: rank {stall.rank}",
            )

    def step(self, step: int) -> None:
        job = self.job
        submitted = self.submissions(step)
        together = max(len(job.tensors) - job.alone, 1)
        waiting = submitted[:, :together].max(axis=1) + 1000
        announced = submitted + _ns(job.announce)
        ready = announced.max(axis=0)[:together]
        done = np.array(self.now)
        for members, time, reason in _close(job, ready, int(waiting.min()) + _ns(job.announce)):
            done = self.run(members, time, reason, submitted, int(ready[members].min()))
            if job.cycles:
                self.mark(0, time, Mark.CYCLE)
        if not job.all_ranks:
            order = np.argsort(announced, axis=None, kind="stable")
            table = np.zeros(order.size, READY)
            table["time"] = announced.reshape(-1)[order]
            table["rank"], table["name"] = np.unravel_index(order, announced.shape)
            self.ready.append(table)
        end = np.maximum(done + 5000, waiting)
        blocked = np.zeros(job.ranks, WAIT)
        blocked["begin"], blocked["end"], blocked["name"] = waiting, end, NONE
        self.waits.append(blocked)
        for index in range(together, len(job.tensors)):
            end = self.alone(index, end, submitted)
        self.now = end + _ns(job.optimizer + self.late(step, "update"))
        for rank in range(job.ranks if job.phases else 0):
            self.mark(rank, int(end[rank]), Mark.PHASE, 1, "update")
            self.mark(rank, int(self.now[rank]) - 10, Mark.PHASE, 0, "update")
        self.step_ends.append(self.now)

    def alone(self, index: int, since: np.ndarray, submitted: np.ndarray) -> np.ndarray:
        """Submit one tensor and wait for it; returns each rank's end."""
        submitted[:, index] = since + _ns(self.job.call)
        ready = int(submitted[:, index].max()) + _ns(self.job.announce)
        end = self.run([index], ready, "blocked", submitted, ready) + 5000
        blocked = np.zeros(self.job.ranks, WAIT)
        blocked["begin"], blocked["end"], blocked["name"] = submitted[:, index] + 1000, end, index
        self.waits.append(blocked)
        return end

    def run(
        self, members: list[int], time: int, reason: str, submitted: np.ndarray, first_ready: int
    ) -> np.ndarray:
        """Execute one batch; returns each rank's end."""
        job = self.job
        size = sum(self.named[i].bytes for i in members)
        copy = int(min(size, CHUNK) / job.copy_speed * 1e9)
        begin = np.maximum(time + self.delays, self.free)
        together = int(begin.max())
        end = together + _ns(job.batch) + int(size / job.speed * 1e9) + 2 * copy
        first = self.named[members[0]]
        looks = first.process_set, KINDS.index(first.kind), DTYPES.index(first.dtype)
        self.batches.append(
            (time, first_ready, copy, end, size, len(members), *looks, REASONS.index(reason))
        )
        self.begins.append(begin)
        self.members.append(members)
        self.submitted.append(submitted[:, members])
        self.depth.append((time, float(len(members)), end))
        self.free = np.full(job.ranks, end, np.int64)
        return self.free

    def result(self) -> Simulated:
        job = self.job
        ends = np.array(self.step_ends, np.int64).reshape(-1, job.ranks).T
        streams = {}
        batches, tensors = self.tables()
        waits = _joined(self.waits, WAIT).reshape(-1, job.ranks)
        ready = _joined(self.ready, READY)
        for rank in job.recorded:
            marks = np.zeros(ends.shape[1], MARK)
            marks["time"], marks["kind"], marks["text"] = ends[rank], int(Mark.STEP), NONE
            marks["value"] = np.arange(1, ends.shape[1] + 1)
            marks = np.concatenate([marks, np.array(self.marks[rank], MARK)])
            streams[rank] = {
                "tensors": tensors[rank],
                "batches": batches[rank],
                "waits": waits[:, rank].copy(),
                "marks": marks[np.argsort(marks["time"], kind="stable")],
                "ready": ready.copy(),
                "counters": self.counter_readings(rank),
            }
        end = int(ends.max()) + 1_000_000 if ends.size else START_NS + 2_000_000
        return Simulated(streams, self.texts, ends, START_NS, end)

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """[rank, batch] and [rank, tensor of a batch]: what each rank records of them."""
        ranks = self.job.ranks
        columns = np.array(self.batches, np.int64).reshape(-1, len(COLUMNS)).T
        batches = np.zeros((ranks, len(self.batches)), BATCH)
        for name, column in zip(COLUMNS, columns, strict=True):
            batches[name] = column
        batches["scheduled"][1:] = batches["first_ready"][1:] = 0
        begin = np.array(self.begins, np.int64).reshape(-1, ranks).T
        copy = columns[COLUMNS.index("packed")]
        batches["begin"], batches["packed"] = begin, begin + copy
        batches["unpacking"] = batches["end"] - copy
        batches["waited_ns"] = begin.max(axis=0) - begin
        batches["serial"], batches["flags"] = np.arange(len(self.batches)), int(Flag.OK)
        tensors = np.zeros((ranks, sum(map(len, self.members))), TENSOR)
        tensors["name"] = [index for members in self.members for index in members]
        tensors["batch"] = np.repeat(batches["serial"][0], [len(m) for m in self.members])
        if self.submitted:
            tensors["submitted"] = np.concatenate(self.submitted, axis=1)
        return batches, tensors

    def counter_readings(self, rank: int) -> np.ndarray:
        if not self.job.counters:
            return np.array(self.pickled[rank], COUNTER)
        name = "gpu utilisation (%)"
        if name not in self.texts:
            self.texts.append(name)
        ends = [int(times[rank]) for times in self.step_ends]
        table = np.zeros(len(ends), COUNTER)
        table["time"], table["counter"] = ends, self.texts.index(name)
        table["value"] = 50 + 40 * np.sin(np.arange(len(ends)) + rank)
        return table


def _close(job: Job, ready: np.ndarray, blocked: int) -> Iterator[tuple[list[int], int, str]]:
    """The batches of a step: members, when the coordinator closed them, and why.

    `blocked`: from then on the coordinator knows that somebody waits.
    """
    pending: list[int] = []
    first = 0
    cycle = _ns(job.cycle)
    order = np.argsort(ready, kind="stable").tolist()
    for count, index in enumerate(order, 1):
        time = int(ready[index])
        due, why = min((first + cycle, "cycle"), (max(first, blocked), "blocked"))
        if pending and due <= time:
            for members, reason in _plan(job, pending, why):
                yield members, due, reason
            pending = []
        # The first of a batch wakes it. Then it sleeps until the cycle is over, or somebody waits.
        asleep = bool(pending) and time < blocked
        first = first if pending else time
        pending.append(index)
        if asleep:
            continue
        why = "blocked" if time >= blocked else "step done" if count == len(order) else ""
        for members, reason in _plan(job, pending, why):
            if reason:
                yield members, time, reason
                pending = pending[len(members) :]
    due, why = min((first + cycle, "cycle"), (max(first, blocked), "blocked"))
    for members, reason in _plan(job, pending, why):
        yield members, due, reason


def _plan(job: Job, pending: list[int], reason: str) -> Iterator[tuple[list[int], str]]:
    """Batches of what is alike and fits; "full" where the next tensor did not fit."""
    members: list[int] = []
    size = 0
    for index in pending:
        tensor = job.tensors[index]
        alike = not members or _alike(job.tensors[members[0]]) == _alike(tensor)
        if members and not (alike and size + tensor.bytes <= job.threshold):
            yield members, "full" if alike else (reason or "full")
            members, size = [], 0
        members.append(index)
        size += tensor.bytes
    if members:
        yield members, "full" if size >= job.threshold else reason


def _alike(tensor: Tensor) -> tuple[str, str, int]:
    return tensor.kind, tensor.dtype, tensor.process_set


def _ns(seconds: Any) -> Any:
    if isinstance(seconds, np.ndarray):
        return np.rint(seconds * 1e9).astype(np.int64)
    return round(seconds * 1e9)


def _joined(parts: list[np.ndarray], dtype: np.dtype[Any]) -> np.ndarray:
    # NumPy would look at the fields of each part.
    return np.frombuffer(bytearray().join(part.tobytes() for part in parts), dtype)


def _settings(job: Job) -> dict[str, Any]:
    return {
        "HOROVOD_FUSION_THRESHOLD": job.threshold,
        "HOROVOD_CYCLE_TIME": job.cycle * 1000,
        "HOROVOD_CACHE_CAPACITY": 1024,
    }


#: What recording() has simulated, for step_seconds(): tests ask for both.
_step_seconds: dict[Job, float] = {}


def step_seconds(job: Job) -> float:
    """Mean duration of a step of `job`: what the slowest rank needs, seconds."""
    if job not in _step_seconds:
        _keep_step_seconds(job, simulate(job))
    return _step_seconds[job]


def _keep_step_seconds(job: Job, simulated: Simulated) -> None:
    ends = simulated.step_ends
    if ends.size:
        begin = START_NS + 1_000_000
        _step_seconds[job] = float(ends[:, -1].max() - begin) / 1e9 / job.steps


def identity(job: Job, rank: int) -> Identity:
    """What rank `rank` writes about itself."""
    started = int(local_time(job, rank, np.array([START_NS]))[0])
    return Identity(
        job=job.id,
        rank=rank,
        size=job.ranks,
        local_rank=rank % job.local_size,
        host=f"host{rank // job.local_size}",
        pid=1000 + rank,
        version="0.0.synthetic",
        started_wall_us=START_WALL_US,
        started_ns=started,
        framework=job.framework,
        settings=_settings(job),
        peak_gbps=job.peak_gbps,
        cpus=job.cpus,
        local_size=min(job.local_size, job.ranks),
    )


def recording(job: Job) -> Recording:
    """The job as a reader should see it: all recorded ranks, exactly on rank 0's clock."""
    simulated = simulate(job)
    _keep_step_seconds(job, simulated)
    return _recording(job, simulated)


def _recording(job: Job, simulated: Simulated) -> Recording:
    named = [Name(t.name, t.process_set, t.kind, t.dtype, t.bytes) for t in job.named]
    result = Recording(source="synthetic", clock_bound_ns=_bound(job))
    for rank, streams in simulated.streams.items():
        result.ranks[rank] = RankRecording(
            identity=identity(job, rank),
            names=list(named),
            texts=list(simulated.texts),
            streams=streams,
            clock=clock_readings(job, rank, simulated.end),
            complete=True,
            sets=list(job.members),
        )
    return result


def _bound(job: Job) -> int:
    return 2 * _ns(job.bound) if len(job.recorded) > 2 else _ns(job.bound) * (job.ranks > 1)


def local_time(job: Job, rank: int, times: np.ndarray) -> np.ndarray:
    """Rank 0's clock → the clock of `rank`, ns."""
    offset = _ns(job.offset[rank]) if rank < len(job.offset) else 0
    drift = job.drift[rank] if rank < len(job.drift) else 0.0
    # rank 0 = local + offset + drift × (local − the local time of START_NS)
    since = times.astype(np.int64) - START_NS
    return START_NS - offset + np.rint(since / (1 + drift)).astype(np.int64)


def clock_readings(job: Job, rank: int, end: int) -> list[ClockReading]:
    """Readings of rank 0's clock, each wrong by at most its bound."""
    if rank == 0:
        return []
    random = np.random.default_rng((job.seed, rank))
    bound = _ns(job.bound)
    times = np.append(np.arange(START_NS, end, _ns(job.reading_every)), end)
    local = local_time(job, rank, times)
    wrong = random.integers(-bound, bound, len(times), endpoint=True)
    return [
        ClockReading(int(here), int(there - here + error), bound)
        for here, there, error in zip(local, times, wrong, strict=True)
    ]


TIMES = {
    "tensors": ("submitted",),
    "batches": ("scheduled", "first_ready", "begin", "packed", "unpacking", "end"),
    "waits": ("begin", "end"),
    "marks": ("time",),
    "ready": ("time",),
    "counters": ("time",),
}


def by_own_clock(job: Job, rank: int, streams: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies of `streams` with the times that rank `rank` would have recorded; 0 stays 0."""
    result = {}
    for stream, table in streams.items():
        table = table.copy()
        for column in TIMES[stream]:
            known = table[column] != 0
            table[column][known] = local_time(job, rank, table[column][known])
        result[stream] = table
    return result


def event(name: str, rank: int, args: dict[str, Any]) -> str:
    """One line of a capture."""
    return json.dumps({"name": name, "ph": "M", "pid": rank, "args": args})


def block(stream: str, rank: int, table: np.ndarray, first: int | None = None) -> str:
    """A block of records; `first`: the number of its first one."""
    data = base64.b64encode(table.tobytes()).decode()
    args = {"stream": stream, "count": len(table), "data": data}
    return event("hvdtune_block", rank, args if first is None else {**args, "first": first})


def capture_lines(job: Job, rank: int, simulated: Simulated, records: int = 4096) -> list[str]:
    """The events of one rank's file, as the recorder would write them."""
    streams = by_own_clock(job, rank, simulated.streams[rank])
    names = [[i, t.name, t.process_set, t.kind, t.dtype, t.bytes] for i, t in enumerate(job.named)]
    lines = [
        event("hvdtune_identity", rank, asdict(identity(job, rank))),
        event("hvdtune_names", rank, {"names": names}),
        event("hvdtune_texts", rank, {"texts": list(map(list, enumerate(simulated.texts)))}),
    ]
    pieces = max((-(-len(table) // records) for table in streams.values()), default=0)
    for piece in range(pieces):
        for stream in STREAMS:
            # The streams side by side, as they arise together.
            table = streams[stream]
            share = -(-len(table) // pieces)
            part = table[piece * share : (piece + 1) * share]
            if len(part):
                lines.append(block(stream, rank, part, piece * share))
    lines += [event("hvdtune_set", rank, asdict(one)) for one in job.members]
    for reading in clock_readings(job, rank, simulated.end):
        lines.append(event("hvdtune_clock", rank, asdict(reading)))
    lines.append(event("hvdtune_dropped", rank, {}))
    counts = {stream: len(table) for stream, table in streams.items()}
    lines.append(event("hvdtune_end", rank, {"reason": "shutdown", "records": counts}))
    return lines


def describing(whole: Recording, program: object) -> Recording:
    """The recording, whose ranks have said this of their program when their first step ended."""
    for one in whole.ranks.values():
        one.texts.append(json.dumps(program))
        mark = one.marks[one.marks["kind"] == int(Mark.STEP)][:1].copy()
        mark["kind"], mark["text"] = int(Mark.PROGRAM), len(one.texts) - 1
        one.streams["marks"] = np.concatenate([mark, one.marks])
    return whole


def write_capture(job: Job, folder: Path, name: str = "t.json", records: int = 4096) -> Path:
    """Write every rank's file into `folder`; returns rank 0's. Not finished, not joined.

    A name that ends in .gz is written compressed.
    """
    simulated = simulate(job)
    paths = [folder / rank_name(name, rank) for rank in job.recorded]
    for rank, path in zip(job.recorded, paths, strict=True):
        lines = capture_lines(job, rank, simulated, records)
        write_lines(path, lines)
    return paths[0]


def write_lines(path: Path, lines: list[str]) -> None:
    """One array, one event a line."""
    data = ("[\n" + ",\n".join(lines) + "\n]").encode()
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)


def rank_name(name: str, rank: int) -> str:
    """`t.json` → `t.rank3.json`, as the recorder names the files beside rank 0's."""
    if rank == 0:
        return name
    stem, dot, suffix = name.partition(".json")
    return f"{stem}.rank{rank}{dot}{suffix}"
