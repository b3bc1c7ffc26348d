"""One-time starts in a timeline of Horovod's layout: found, named, and taken out.

An operation lasts from its first tick, or the start of its negotiation, to its end. It belongs to a
one-time start if it overlaps the initialisation of a library (such as INIT_NCCL), or if it is new
(the tensor's first operation, or the first with a new shape) and much longer than usual: LONG times
the median of the same tensor's other operations (of all repeated ones, if the tensor never
repeats), and at least LEAST_US. Everything that runs or waits meanwhile belongs to the same start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdtune.timeline import schema, words
from hvdtune.timeline.horovod.model import INIT, NEGOTIATE, Span, Trace
from hvdtune.timeline.structure.intervals import union_length

if TYPE_CHECKING:
    import pandas as pd

LONG = 5
LEAST_US = 100_000


@dataclass(frozen=True)
class Start:
    """A one-time start; times in us. `waited`: how long ranks waited for each other in it;
    `reasons`: what started, as far as the file shows it."""

    begin: int
    end: int
    waited: int
    reasons: tuple[str, ...]

    @property
    def duration(self) -> int:
        """`end - begin`, us."""
        return self.end - self.begin


def find(trace: Trace, ops: pd.DataFrame) -> list[Start]:
    """The one-time starts of a recording, in order. `ops` is from analysis.operations()."""
    found = [(span.begin, span.end, _initialisation(span.name)) for span in _slow_inits(trace)]
    inits = [(begin, end) for begin, end, _ in found]
    rows = _lives(ops)
    found += [
        (begin, end, reason)
        for begin, end, reason in rows
        if reason or any(begin < until and since < end for since, until in inits)
    ]
    starts: list[tuple[int, int, tuple[str, ...]]] = []
    for begin, end, reason in sorted(found):
        if starts and begin <= starts[-1][1]:
            since, until, reasons = starts.pop()
            begin, end = since, max(until, end)
        else:
            reasons = ()
        starts.append((begin, end, (*reasons, reason) if reason else reasons))
    judged = ops[ops["skew_us"].notna()]
    waits = list(zip(judged["first_ready"], judged["last_ready"], strict=True))
    return [
        Start(begin, end, _waited(waits, begin, end), tuple(sorted(set(reasons), key=_order)))
        for begin, end, reasons in starts
    ]


def without(trace: Trace, starts: list[Start]) -> Trace:
    """The recording without its starts: without the operations that run or wait in one, and without
    the time between the remaining ones."""
    if not starts:
        return trace
    gone: dict[str, list[tuple[int, int]]] = defaultdict(list)
    negotiated: dict[str, int] = {}
    for span in trace.spans:
        if span.depth > 0:
            continue
        if span.name.startswith(NEGOTIATE):
            negotiated[span.tensor] = span.begin
        life = (negotiated.get(span.tensor, span.begin), span.end)
        if not span.name.startswith(NEGOTIATE):
            negotiated.pop(span.tensor, None)
        if any(life[0] < start.end and start.begin < life[1] for start in starts):
            gone[span.tensor].append(life)

    def stays(tensor: str, begin: int, end: int) -> bool:
        return not any(since <= begin and end <= until for since, until in gone.get(tensor, ()))

    spans = [span for span in trace.spans if stays(span.tensor, span.begin, span.end)]
    ticks = [tick for tick in trace.ticks if stays(tick.tensor, tick.time, tick.time)]
    times = [span.begin for span in spans] + [tick.time for tick in ticks]
    between = [s.duration for s in starts if times and min(times) < s.begin < max(times)]
    return replace(trace, spans=spans, ticks=ticks, left_out_us=sum(between))


def sentence(starts: list[Start]) -> str:
    """The starts, and that they are not counted; "" if there were none."""
    if not starts:
        return ""
    longest = max(starts, key=lambda start: start.duration)
    text = (
        f"A one-time start ({', '.join(longest.reasons)}) took "
        f"{words.seconds(longest.duration / 1e6)}"
    )
    if longest.waited:
        waited = words.seconds(longest.waited / 1e6)
        text += f", in which ranks waited {waited} for each other"
    more = len(starts) - 1
    if more:
        total = words.seconds(sum(one.duration for one in starts if one is not longest) / 1e6)
        text += f"; {words.number(more, 'shorter one')} took {total} together"
    return f"{text}. It is not counted in any number here, nor against any rank."


def numbers(starts: list[Start]) -> schema.HorovodStart | None:
    """The same for a document; None if there were none."""
    if not starts:
        return None
    return {
        "seconds": sum(one.duration for one in starts) / 1e6,
        "waited_s": sum(one.waited for one in starts) / 1e6,
        "sentence": sentence(starts),
        "parts": [
            {
                "begin_us": one.begin,
                "seconds": one.duration / 1e6,
                "waited_s": one.waited / 1e6,
                "reasons": list(one.reasons),
            }
            for one in starts
        ],
    }


def _slow_inits(trace: Trace) -> list[Span]:
    return [s for s in trace.spans if s.name.startswith(INIT) and s.duration >= LEAST_US]


def _initialisation(name: str) -> str:
    return f"{name.removeprefix(INIT).replace('_', ' ')} initialisation"


def _order(reason: str) -> tuple[bool, str]:
    return not reason.endswith("initialisation"), reason


def _lives(ops: pd.DataFrame) -> list[tuple[int, int, str]]:
    """Begin, end and, for a start, the reason (else "") of every operation."""
    if ops.empty:
        return []
    begins = (ops["begin"] - ops["queue_us"].fillna(0) - ops["negotiate_us"].fillna(0)).astype(int)
    lasted = (ops["end"].astype(int) - begins).astype(float)
    order = [str(tensor) for tensor in ops["tensor"]]
    shapes = [None if shape != shape else shape for shape in ops["shape"]]
    repeated = lasted[ops["index"].astype(int) > 0]
    usual = float(repeated.median()) if len(repeated) else float("nan")
    medians = lasted[ops["index"].astype(int) > 0].groupby(ops["tensor"]).median().to_dict()
    seen: dict[str, set[object]] = {}
    rows = []
    for tensor, shape, begin, end, length in zip(
        order, shapes, begins, ops["end"], lasted, strict=True
    ):
        shapes_before = seen.setdefault(tensor, set())
        reason = ""
        typical = medians.get(tensor, usual)  # NaN: nothing shows what is usual
        if length >= LEAST_US and length >= LONG * typical:
            if not shapes_before:
                reason = "first operation" if len(seen) == 1 else "first operation on a tensor"
            elif shape not in shapes_before:
                reason = "new shape"
        shapes_before.add(shape)
        rows.append((int(begin), int(end), reason))
    return rows


def _waited(waits: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    return union_length((int(a), int(b)) for a, b in waits if begin <= a and b <= end)
