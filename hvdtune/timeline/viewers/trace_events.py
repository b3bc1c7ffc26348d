"""Collects Chrome trace events, and sorts them into the order that viewers need.

Times are whole eighths of a microsecond. Viewers read them as binary fractions of a microsecond
without rounding, so events that nest here also nest there.
"""

from __future__ import annotations

import json
from typing import Any

QUANTUM_NS = 125


class TraceEvents:
    """Collects lines with their sort keys.

    `q`: a time as at() gives it. `name`, `args`: JSON texts. `counts`: events per phase (`ph`).
    """

    # The order of events at the same time.
    METADATA, ASYNC_END, SLICE, ASYNC_BEGIN, OTHER, FLOW = range(6)

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.keyed: list[tuple[int, int, int, str]] = []
        self.counts: dict[str, int] = {}
        self.flows = 0

    def at(self, time: Any) -> Any:
        """Nanoseconds of rank 0's clock → eighths of a microsecond since the origin."""
        return (time - self.origin) // QUANTUM_NS

    def add(self, q: int, order: int, phase: str, rest: str) -> None:
        """An event; `rest` is the inside of its JSON object."""
        self.counts[phase] = self.counts.get(phase, 0) + 1
        # The number keeps the order of events with equal keys: outer before inner.
        line = f'{{"ph":"{phase}","ts":{q / 8},{rest}}}'
        self.keyed.append((q, order, len(self.keyed), line))

    def metadata(self, name: str, pid: int, args: dict[str, Any], tid: int | None = None) -> None:
        """The name or position of a process or thread."""
        thread = "" if tid is None else f'"tid":{tid},'
        line = f'{{"name":"{name}","ph":"M","pid":{pid},{thread}"args":{json.dumps(args)}}}'
        self.keyed.append((-(1 << 62), self.METADATA, len(self.keyed), line))

    def slice(self, pid: int, tid: int, q: int, until: int, name: str, args: str = "") -> None:
        """A bar of a lane."""
        extra = f',"args":{args}' if args else ""
        rest = f'"dur":{(until - q) / 8},"pid":{pid},"tid":{tid},"name":{name}{extra}'
        self.add(q, self.SLICE, "X", rest)

    def instant(
        self, pid: int, time: int, name: str, args: dict[str, Any], scope: str = "p"
    ) -> None:
        """An instant event; `time` in nanoseconds."""
        rest = f'"pid":{pid},"tid":{1},"s":"{scope}","name":"{name}"'
        self.add(max(0, self.at(time)), self.OTHER, "i", f'{rest},"args":{json.dumps(args)}')

    def counter(self, pid: int, q: int, name: str, value: str) -> None:
        """A reading of a counter."""
        self.add(q, self.OTHER, "C", f'"pid":{pid},"name":{name},"args":{{"value":{value}}}')

    def flow(self, phase: str, q: int, pid: int, tid: int, number: int, name: str) -> None:
        """A part of an arrow: s, t or f; each must be inside a bar."""
        ends = ',"bp":"e"' if phase == "f" else ""
        where = f'"pid":{pid},"tid":{tid},"id":{number},"cat":"{name}","name":"{name}"{ends}'
        self.add(q, self.FLOW, phase, where)

    def lines(self) -> list[str]:
        """All events, in order of time."""
        self.keyed.sort()
        return [line for *_, line in self.keyed]
