"""Draws one rank: its lanes, its tensors, its counters and marks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hvdtune.timeline.analysis.phases import pieces
from hvdtune.timeline.analysis.sizes import bus_factor
from hvdtune.timeline.record.layout import (
    DTYPES,
    KINDS,
    NONE,
    REASONS,
    Flag,
    Mark,
    RankRecording,
    Recording,
)
from hvdtune.timeline.viewers.trace_events import TraceEvents
from hvdtune.timeline.viewers.window import Window

LANES = {"steps": 1, "gradients": 2, "negotiation": 3, "queue": 4, "communication": 5}
PHASES_LANE = 6  # for ranks that have marks of phases
FIRST_WAITING_LANE = 11
MOST_WAITING_LANES = 64
#: Length of a bar that represents a moment: 1 us. Two such bars are at least this far apart,
#: because the Chrome trace viewer nests anything closer.
BAR = 8
INSTANTS = {
    Mark.CYCLE: "CYCLE_START",
    Mark.SETTINGS: "SETTINGS",
    Mark.PROGRAM: "PROGRAM",
    Mark.CALL_SITE: "CALL_SITE",
    Mark.STALL: "STALL",
    Mark.AUTOTUNE: "AUTOTUNE",
    Mark.STRAGGLER: "STRAGGLER",
    Mark.USER: "USER",
    Mark.WINDOW: "RECORDING",
    Mark.ERROR: "ERROR",
}


def batch_of_tensors(one: RankRecording) -> np.ndarray:
    """The index in `one.batches` of the batch of each of `one.tensors`, or −1."""
    tensors, batches = one.tensors, one.batches
    low = (batches["serial"] & 0xFFFFFFFF).astype(np.uint32)
    if int(batches["tensors"].sum(dtype=np.int64)) == len(tensors):
        # No record was lost: the tensors are in the batches' order.
        index = np.repeat(np.arange(len(batches)), batches["tensors"])
        if (low[index] == tensors["batch"]).all():
            return index
    result = np.full(len(tensors), -1, np.int64)
    if len(batches):
        order = np.argsort(low, kind="stable")
        at = np.searchsorted(low[order], tensors["batch"]).clip(max=len(batches) - 1)
        index = order[at]
        # A batch that began before the submission is another one with the same number.
        right = (low[index] == tensors["batch"]) & (tensors["submitted"] <= batches["begin"][index])
        result[right] = index[right]
    return result


class RankView:
    """Draws one rank."""

    def __init__(
        self,
        recording: Recording,
        rank: int,
        window: Window,
        schedule: dict[str, np.ndarray],
        events: TraceEvents,
    ) -> None:
        self.one = recording.ranks[rank]
        self.rank = rank
        self.window = window
        self.events = events
        self.quoted = [json.dumps(name.name) for name in self.one.names]
        begin = self.one.batches["begin"]
        chosen = np.flatnonzero((begin >= window.begin) & (begin < window.end))
        self.batches = self.one.batches[chosen]
        index = batch_of_tensors(self.one)
        back = np.full(len(begin) + 1, -1, np.int64)  # its last element is for index −1
        back[chosen] = np.arange(len(chosen))
        self.batch_of = back[index]
        inside = self.batch_of >= 0
        self.tensors, self.batch_of = self.one.tensors[inside], self.batch_of[inside]
        self.scheduled = self._scheduled(schedule)

    def _scheduled(self, schedule: dict[str, np.ndarray]) -> np.ndarray:
        """When rank 0 closed each batch; 0 if unknown."""
        serials = schedule["serial"]
        if not len(serials):
            return np.zeros(len(self.batches), np.int64)
        at = np.searchsorted(serials, self.batches["serial"]).clip(max=len(serials) - 1)
        known = serials[at] == self.batches["serial"]
        known &= schedule["scheduled"][at] <= self.batches["begin"]
        return np.where(known, schedule["scheduled"][at], 0)

    def draw(self) -> None:
        """Add everything of this rank to the events."""
        self._name_lanes()
        self._draw_steps()
        self._draw_phases()
        self._draw_waits()
        self._draw_batches()
        self._draw_tensors()
        self._draw_counters()
        self._draw_marks()

    def _name_lanes(self) -> None:
        who = self.one.identity
        name = f"rank {self.rank} · {who.host} · pid {who.pid}"
        self.events.metadata("process_name", self.rank, {"name": name})
        self.events.metadata("process_sort_index", self.rank, {"sort_index": self.rank})
        for lane, tid in LANES.items():
            self._name_lane(lane, tid)

    def _name_lane(self, name: str, tid: int, position: int | None = None) -> None:
        self.events.metadata("thread_name", self.rank, {"name": name}, tid)
        index = {"sort_index": tid if position is None else position}
        self.events.metadata("thread_sort_index", self.rank, index, tid)

    def _draw_steps(self) -> None:
        marks = self.one.marks[self.one.marks["kind"] == Mark.STEP]
        ends = self.events.at(marks["time"])
        begin = max(0, int(self.events.at(self.window.begin)))
        for step, time, end in zip(marks["value"], marks["time"], ends, strict=True):
            if self.window.begin < time <= self.window.end and end > begin:
                self.events.slice(
                    self.rank,
                    LANES["steps"],
                    begin,
                    int(end),
                    f'"step {step}"',
                    f'{{"step":{step}}}',
                )
                begin = int(end)

    def _draw_phases(self) -> None:
        found = pieces(self.one)
        inside = (found.begin >= self.window.begin) & (found.end <= self.window.end)
        if inside.any():
            self._name_lane("phases", PHASES_LANE)
        begins, ends = self.events.at(found.begin[inside]), self.events.at(found.end[inside])
        for name, begin, end in zip(found.name[inside], begins, ends, strict=True):
            if end > begin:
                label = json.dumps(name)
                self.events.slice(self.rank, PHASES_LANE, int(begin), int(end), label)

    def _draw_waits(self) -> None:
        waits = self.one.waits
        waits = waits[(waits["begin"] >= self.window.begin) & (waits["begin"] < self.window.end)]
        lanes: dict[int, int] = {}
        reached: dict[int, int] = {}
        begins, ends = self.events.at(waits["begin"]), self.events.at(waits["end"])
        for wait, begin, end in zip(waits, begins.tolist(), ends.tolist(), strict=True):
            thread = int(wait["thread"])
            if thread not in lanes:
                if len(lanes) == MOST_WAITING_LANES:
                    continue
                lanes[thread] = FIRST_WAITING_LANE + len(lanes)
                self._name_lane(f"framework, thread {len(lanes)}", lanes[thread], 1)
            begin = max(begin, reached.get(thread, 0))
            if end > begin:
                for_what = (
                    self.quoted[wait["name"]] if wait["name"] != NONE else '"several tensors"'
                )
                self.events.slice(
                    self.rank, lanes[thread], begin, end, '"WAIT"', f'{{"for":{for_what}}}'
                )
                reached[thread] = end

    def _draw_batches(self) -> None:
        events, at = self.events, self.events.at
        batches = self.batches
        first = np.full(len(batches), np.iinfo(np.int64).max)
        known = self.tensors["submitted"] > 0
        np.minimum.at(first, self.batch_of[known], self.tensors["submitted"][known])
        columns = [at(batches[name]).tolist() for name in ("begin", "packed", "unpacking", "end")]
        scheduled, submitted = at(self.scheduled).tolist(), at(first).tolist()
        negotiated = queued = ran = 0
        for i, (begin, packed, unpacking, end) in enumerate(zip(*columns, strict=True)):
            batch = batches[i]
            op = KINDS[batch["kind"]].upper()
            closed = min(scheduled[i], begin) if self.scheduled[i] else begin
            if submitted[i] < closed and max(submitted[i], negotiated) < closed:
                since = max(submitted[i], negotiated, 0)
                events.slice(self.rank, LANES["negotiation"], since, closed, f'"NEGOTIATE_{op}"')
                negotiated = closed
            if max(closed, queued) < begin and self.scheduled[i]:
                events.slice(self.rank, LANES["queue"], max(closed, queued), begin, '"QUEUE"')
                queued = begin
            begin = max(begin, ran)
            end = max(end, begin + 2)
            args = json.dumps(_batch_args(batch, self.ranks_of(batch)))
            events.slice(self.rank, LANES["communication"], begin, end, f'"{op}"', args)
            packed = min(max(packed, begin), end) if batch["packed"] else begin
            unpacking = min(max(unpacking, packed), end) if batch["unpacking"] else end
            if batch["flags"] & Flag.IN_PLACE:
                packed, unpacking = begin, end
            transfer = "SHM_BCAST" if op == "BROADCAST" else f"SHM_{op}"
            for name, left, right in (
                ("MEMCPY_IN_FUSION_BUFFER", begin, packed),
                (transfer, packed, unpacking),
                ("MEMCPY_OUT_FUSION_BUFFER", unpacking, end),
            ):
                if right > left:
                    events.slice(self.rank, LANES["communication"], left, right, f'"{name}"')
            ran = end
            # The place at which the tensors' flows meet the batch's bar.
            columns[0][i], columns[3][i] = begin, end
        self.begins, self.ends, self.closed = columns[0], columns[3], scheduled

    def _draw_tensors(self) -> None:
        submitted = self.events.at(self.tensors["submitted"])
        right = (self.tensors["submitted"] > 0) & (submitted >= 0)
        right &= submitted < np.array(self.begins, np.int64)[self.batch_of]
        chosen = np.flatnonzero(right)
        chosen = chosen[np.argsort(submitted[chosen], kind="stable")]
        bar: list[int] = []  # tensors submitted within a moment share a bar
        ends: dict[int, int] = {}
        for i in chosen.tolist():
            if bar and submitted[i] >= submitted[bar[0]] + 2 * BAR:
                self._draw_bar(bar, int(submitted[bar[0]]))
                bar = []
            bar.append(i)
            name, batch = int(self.tensors["name"][i]), int(self.batch_of[i])
            since = max(int(submitted[i]), ends.get(name, 0))
            if since < self.begins[batch]:
                self._draw_async(name, batch, since)
                ends[name] = self.ends[batch]
        if bar:
            self._draw_bar(bar, int(submitted[bar[0]]))

    def _draw_bar(self, tensors: list[int], q: int) -> None:
        """Draw tensors submitted within two bars' length from `q` on, with their flows."""
        names = [self.one.names[self.tensors["name"][i]].name for i in tensors]
        label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        lane = LANES["gradients"]
        self.events.slice(self.rank, lane, q, q + BAR, json.dumps(label))
        for i in tensors:
            batch = self.batch_of[i]
            self._draw_flow(q, self.begins[batch], self.ends[batch])

    def _draw_flow(self, submitted: int, begin: int, end: int) -> None:
        self.events.flows += 1
        number, lane = self.events.flows, LANES["communication"]
        self.events.flow("s", submitted, self.rank, LANES["gradients"], number, "gradient")
        self.events.flow("t", begin + 1, self.rank, lane, number, "gradient")
        self.events.flow("f", end - 1, self.rank, lane, number, "gradient")

    def _draw_async(self, name: int, batch: int, submitted: int) -> None:
        begin, end = self.begins[batch], self.ends[batch]
        op = KINDS[self.batches["kind"][batch]].upper()
        closed = min(self.closed[batch], begin) if self.scheduled[batch] else begin
        closed = max(closed, submitted)
        # An id local to the process: Perfetto shows events with a plain `id` outside all processes.
        track = f'"id2":{{"local":"0x{name + 1:x}"}}'
        identity = f'"cat":"tensor",{track},"pid":{self.rank},"tid":{LANES["gradients"]}'
        size = self.one.names[name].bytes
        args = f'{{"bytes":{size},"batch":{self.batches["serial"][batch]}}}'
        parts = [(submitted, end, self.quoted[name], args)]
        for label, left, right in (
            (f'"NEGOTIATE_{op}"', submitted, closed),
            ('"QUEUE"', closed, begin),
            (f'"{op}"', begin, end),
        ):
            if right > left:
                parts.append((left, right, label, ""))
        for left, _, label, extra in parts:
            more = f',"args":{extra}' if extra else ""
            self.events.add(left, TraceEvents.ASYNC_BEGIN, "b", f'{identity},"name":{label}{more}')
        for _, right, label, _ in reversed(parts):
            self.events.add(right, TraceEvents.ASYNC_END, "e", f'{identity},"name":{label}')

    def ranks_of(self, batch: np.void) -> int:
        """The number of ranks in the batch; 0: not recorded."""
        return self.one.members(int(batch["process_set"]), int(batch["serial"]))

    def _draw_counters(self) -> None:
        events = self.events
        batches = self.batches
        if len(batches):
            self._draw_queue()
        thresholds = _thresholds(self.one)
        for i, batch in enumerate(batches):
            begin, end = self.begins[i], self.ends[i]
            threshold = thresholds(int(batch["epoch"]))
            if threshold and batch["kind"] == KINDS.index("allreduce"):
                fill = f"{100 * int(batch['bytes']) / threshold:.4g}"
                events.counter(self.rank, begin, '"fusion fill (%)"', fill)
            busbw = bus_bandwidth(batch, self.ranks_of(batch))
            if busbw is not None:
                events.counter(self.rank, begin, '"bus bandwidth (GB/s)"', f"{busbw:.4g}")
                events.counter(self.rank, end, '"bus bandwidth (GB/s)"', "0")
        for reading in self.one.counters:
            if self.window.begin <= reading["time"] < self.window.end:
                name = json.dumps(self.one.texts[reading["counter"]])
                q = max(0, int(events.at(reading["time"])))
                events.counter(self.rank, q, name, f"{float(reading['value']):.9g}")

    def _draw_queue(self) -> None:
        """Draw the tensors and bytes under way whenever a batch begins or ends."""
        sizes = np.array([name.bytes for name in self.one.names] or [0], np.int64)
        submitted = self.tensors["submitted"]
        order = np.argsort(submitted, kind="stable")
        ended = self.batches["end"][self.batch_of]
        leaving = np.argsort(ended, kind="stable")
        bytes_of = sizes[self.tensors["name"]]
        moments = np.unique(np.concatenate([self.batches["begin"], self.batches["end"]]))
        came = np.searchsorted(submitted[order], moments, side="right")
        gone = np.searchsorted(ended[leaving], moments, side="right")
        bytes_came = np.append(0, np.cumsum(bytes_of[order]))[came]
        bytes_gone = np.append(0, np.cumsum(bytes_of[leaving]))[gone]
        previous = -1
        for q, tensors, size in zip(
            self.events.at(moments).tolist(),
            (came - gone).tolist(),
            (bytes_came - bytes_gone).tolist(),
            strict=True,
        ):
            if q != previous:
                self.events.counter(self.rank, q, '"queue depth (tensors)"', str(tensors))
                self.events.counter(self.rank, q, '"in flight (bytes)"', str(size))
            previous = q

    def _draw_marks(self) -> None:
        for mark in self.one.marks:
            if not self.window.begin <= mark["time"] < self.window.end:
                continue
            text = self.one.texts[mark["text"]] if mark["text"] != NONE else ""
            kind, value = int(mark["kind"]), int(mark["value"])
            if kind == Mark.PHASE:
                continue
            if kind == Mark.STEP:
                self.events.instant(self.rank, int(mark["time"]), f"STEP {value}", {"step": value})
            else:
                name = INSTANTS.get(Mark(kind)) if kind in Mark._value2member_map_ else None
                args = {"value": value, "text": text}
                # There are many cycles: lines through the whole process would hide the lanes below.
                scope = "t" if kind == Mark.CYCLE else "p"
                name = name or f"MARK {kind}"
                self.events.instant(self.rank, int(mark["time"]), name, args, scope)
        for tick in self.one.ready:
            if self.window.begin <= tick["time"] < self.window.end:
                name = self.one.names[tick["name"]].name
                args = {"tensor": name, "rank": int(tick["rank"])}
                self.events.instant(self.rank, int(tick["time"]), f"READY {tick['rank']}", args)


def bus_bandwidth(batch: np.void, ranks: int) -> float | None:
    """busbw of a batch in GB/s (1e9): bytes / duration × the operation's factor, as nccl-tests.

    An allgather's bytes are those of the whole result, if all ranks contribute as much as this one.
    None for one rank, an unknown number of ranks (0), barriers and failed batches.
    """
    kind = KINDS[batch["kind"]]
    factor = bus_factor(kind, ranks)
    duration = int(batch["end"]) - int(batch["begin"])
    if np.isnan(factor) or duration <= 0 or not batch["flags"] & Flag.OK:
        return None
    size = int(batch["bytes"]) * (ranks if kind == "allgather" else 1)
    return float(size / duration * factor)


def _batch_args(batch: np.void, ranks: int) -> dict[str, Any]:
    busbw = bus_bandwidth(batch, ranks)
    return {
        "batch": int(batch["serial"]),
        "tensors": int(batch["tensors"]),
        "bytes": int(batch["bytes"]),
        "dtype": DTYPES[batch["dtype"]],
        "closed": REASONS[batch["reason"]],
        "waited for ranks (us)": int(batch["waited_ns"]) / 1000,
        "busbw (GB/s)": None if busbw is None else round(busbw, 3),
        "process set": int(batch["process_set"]),
        "settings": int(batch["epoch"]),
        "ok": bool(batch["flags"] & Flag.OK),
    }


def _thresholds(one: RankRecording) -> Any:
    """A function: epoch → fusion threshold in bytes, if known."""
    name = "HOROVOD_FUSION_THRESHOLD"
    start = one.identity.settings.get(name)
    by_epoch: dict[int, Any] = {}
    for mark in one.marks[one.marks["kind"] == Mark.SETTINGS]:
        if mark["text"] == NONE:
            continue
        try:
            settings = json.loads(one.texts[mark["text"]])
        except (ValueError, RecursionError):
            continue
        if isinstance(settings, dict):
            by_epoch[int(mark["value"])] = settings.get("fusion_threshold", settings.get(name))

    def threshold(epoch: int) -> float:
        value = by_epoch.get(epoch, start)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return 0.0
        return float(value) if 0 < value < 1e18 else 0.0

    return threshold
