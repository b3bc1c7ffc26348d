"""One accounting that sums to the mean step: computing, the cost of each finding, communication
that is not hidden, and time without a cause. Every second counts once: see docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline import schema, words
from hvdtune.timeline.analysis.answers import PARTS
from hvdtune.timeline.analysis.skew import pauses
from hvdtune.timeline.evidence.finding import Finding

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.answers import Analysis

COMPUTING, COMMUNICATION, NO_CAUSE = "computing", "communication not hidden", "no cause found"
#: Parts of the waterfall in which operations are agreed on, wait for their turn, or run.
OPERATIONS = PARTS[PARTS.index("negotiation_s") : PARTS.index("other_s")]
#: These findings are about communication: their cost is taken from it.
_OF_TRAFFIC = ("fusion", "cycle time", "huge tensor", "no overlap", "small tensors", "cache",
               "metrics one by one", "orders differ")  # fmt: skip
#: Advice that helps nearly every job names no cause.
_NO_CAUSES = ("copies", "communication bound")
#: Evidence that only a finding about an operation has.
_OF_AN_OPERATION = {"tensor", "operation", "call"}
_OF_A_RANK = ("persistent straggler", "transient straggler", "recurring straggler", "stalled rank")


@dataclass(frozen=True)
class Share:
    """How much of the mean step one cause takes. finding: the index of its finding; -1 if it has
    none. ranks: for findings about ranks, those that the others waited for."""

    kind: str
    title: str
    seconds: float
    finding: int = -1
    ranks: tuple[int, ...] = ()


def shares(
    analysis: Analysis, findings: Sequence[Finding], only: Iterable[int] | None = None
) -> list[Share]:
    """The mean step (mean over steps and recorded ranks, s) in parts that sum to it: computing
    first, then the findings' costs, the largest first, then communication, then time without a
    cause. `only`: numbers of the steps to use. Empty if there is none, or if the recording does not
    show when the program waits.

    A finding about ranks gets the time for which the others wait for them, mean over these others.
    All other waiting for late ranks is the mean over all ranks. Any other finding gets its expected
    gain, unless another finding already has that time. The rest of the step is computing.
    """
    table = analysis.waterfall
    open_ = _Open(analysis, table["step"].unique() if only is None else only)
    if not open_.steps.any() or not analysis.overlap.shows_waits:
        return []
    claims: list[Share] = []
    for at, one in enumerate(findings):
        if one.kind not in _NO_CAUSES and (found := _claim(open_, one)).seconds > 0:
            claims.append(replace(found, finding=at))
    claims.sort(key=lambda one: -one.seconds)
    return [
        Share(COMPUTING, COMPUTING, open_.computing),
        *claims,
        Share(COMMUNICATION, COMMUNICATION, open_.communication),
        Share(NO_CAUSE, NO_CAUSE, open_.waiting + open_.other),
    ]


class _Open:
    """Time of the mean step that has no cause yet, s."""

    def __init__(self, analysis: Analysis, only: Iterable[int]) -> None:
        table = analysis.waterfall
        self.numbers = analysis.found_steps.number
        self.steps = np.isin(self.numbers, list(only))
        rows = table[table["step"].isin(self.numbers[self.steps])]
        self.recorded = tuple(int(rank) for rank in rows["rank"].unique())
        self.step = float(rows["step_s"].mean()) if len(rows) else 0.0
        self.communication = float(rows[list(OPERATIONS)].sum(axis=1).mean()) if len(rows) else 0.0
        self.other = float(rows["other_s"].mean()) if len(rows) else 0.0
        late = analysis.lateness
        self.ranks = sorted(int(rank) for rank in late["rank"].unique())
        shape = len(self.ranks), len(self.numbers)
        ordered = late.sort_values(["rank", "step"], kind="stable")
        self.delay, self.last, self.caused = (
            ordered[name].to_numpy().reshape(shape) for name in ("delay_s", "last", "caused_s")
        )
        self.caused = np.where(self.steps, self.caused, 0.0)
        self.computing = self.step - self.communication - self.other - self.waiting

    @property
    def waiting(self) -> float:
        """The time spent waiting for late ranks that no finding names yet."""
        return float(self.caused.sum()) / max(self.steps.sum() * len(self.recorded), 1)

    def waited_for(self, ranks: tuple[int, ...], steps: np.ndarray) -> float:
        """Takes the time that the others waited for these ranks in these steps ([S] bool)."""
        rows = np.isin(self.ranks, ranks)
        cells = rows[:, None] & steps[None, :]
        others = len([rank for rank in self.recorded if rank not in ranks])
        before = self.waiting
        total = float(self.caused[cells].sum())
        if not total or not others:
            return 0.0
        # Late ranks also wait for each other: a rank that waits for all of them waits longest.
        most = float(np.where(self.steps, self.delay, 0.0)[cells].sum())
        self.caused = np.where(cells, 0.0, self.caused)
        freed = before - self.waiting
        # The time beyond the mean over all ranks is what the late ones computed longer.
        longer = min(total / others, most) / float(self.steps.sum()) - freed
        longer = min(max(longer, 0.0), max(self.computing, 0.0))
        self.computing -= longer
        return freed + longer

    def take(self, seconds: float, pools: Iterable[str]) -> float:
        """Takes up to that many seconds from the pools, in their order."""
        taken = 0.0
        for pool in pools:
            have = self.waiting if pool == "waiting" else float(getattr(self, pool))
            part = min(seconds - taken, max(have, 0.0))
            if pool == "waiting":
                self.caused = self.caused * (1 - part / have) if have > 0 else self.caused
            else:
                setattr(self, pool, have - part)
            taken += part
        return taken


def _claim(open_: _Open, one: Finding) -> Share:
    """The finding's share, taken from the open time."""
    ranks = ranks_of(one)
    wanted = one.gain * open_.step
    endless = one.kind == "stalled rank" and "step" not in one.evidence
    if one.kind in _OF_A_RANK and ranks and not endless:
        seconds = open_.waited_for(ranks, _steps_of(open_, one, ranks))
        if isinstance(hidden := one.evidence.get("hidden_ms"), float):
            rest = max(0.0, hidden / 1e3 - seconds)
            seconds += open_.take(rest, ["communication", "computing"])
        return Share(one.kind, f"waiting for {_and(words.ranks(ranks))}", seconds, ranks=ranks)
    if wanted <= 0 or endless:  # a stall that never ended is in no step
        return Share(one.kind, one.kind, 0.0)
    if one.kind == "ranks take turns":
        title = "waiting for ranks that take turns"
        return Share(one.kind, title, open_.take(open_.waiting, ["waiting"]))
    if one.kind.startswith(_OF_TRAFFIC) or _OF_AN_OPERATION & one.evidence.keys():
        pools = ["communication", "other", "waiting", "computing"]
    elif ranks and (seconds := open_.waited_for(ranks, open_.steps)):
        return Share(one.kind, f"{one.kind} ({words.ranks(ranks)})", seconds, ranks=ranks)
    else:
        pools = ["computing", "waiting", "communication"]
    # A lack of CPUs takes no more of the computing than was recorded; the rest of its gain is
    # other ranks' waiting.
    kept = one.evidence.get("waiting_share")
    if isinstance(kept, float):
        first = open_.take(min(wanted, kept * open_.step), ["computing"])
        rest = open_.take(wanted - first, ["waiting", "communication"])
        return Share(one.kind, one.kind, first + rest)
    return Share(one.kind, one.kind, open_.take(wanted, pools), ranks=ranks)


def _and(text: str) -> str:
    """`ranks 1, 3` without the comma, for use within a list: `ranks 1 and 3`."""
    return " and ".join(text.rsplit(", ", 1))


def ranks_of(one: Finding) -> tuple[int, ...]:
    """The ranks that a finding is about, from its evidence; () if it is about none."""
    if "ranks" in one.evidence:
        text = str(one.evidence["ranks"])
        parts = [part.strip() for part in text.split(",")]
        return tuple(int(part) for part in parts if part.isdecimal())
    rank = one.evidence.get("rank", -1)
    return (int(rank),) if isinstance(rank, int | float) and rank >= 0 else ()


def _steps_of(open_: _Open, one: Finding, ranks: tuple[int, ...]) -> np.ndarray:
    """[S] bool: the steps in which these ranks are late according to the finding."""
    if one.kind == "transient straggler":
        first, final = (float(one.evidence[name]) for name in ("from_step", "to_step"))
        return (open_.numbers >= first) & (open_.numbers <= final)
    rows = np.flatnonzero(np.isin(open_.ranks, ranks))
    if one.kind in ("recurring straggler", "stalled rank") and len(rows):
        held = [pauses(open_.last[row], open_.delay[row]) for row in rows]
        return np.logical_or.reduce(held)
    return np.ones(len(open_.numbers), bool)


def numbers(analysis: Analysis, findings: Sequence[Finding]) -> schema.Accounting | None:
    """The accounting for a document. None if there is none, see shares."""
    found = shares(analysis, findings)
    if not found:
        return None
    step = sum(one.seconds for one in found)
    return {
        "step_s": step,
        "sentence": sentence(found),
        "shares": [
            {
                "kind": one.kind,
                "title": one.title,
                "seconds": one.seconds,
                "share": one.seconds / step if step else 0.0,
                "finding": one.finding if one.finding >= 0 else None,
            }
            for one in found
        ],
    }


def sentence(found: Sequence[Share]) -> str:
    """`Of 54.2 ms a step: 31.0 ms computing, 14.1 ms waiting for rank 1, …`. The numbers sum to the
    step, to the last digit."""
    step = sum(one.seconds for one in found)
    unit, name = (1.0, "s") if step >= 1 else (1e-3, "ms") if step >= 1e-3 else (1e-6, "µs")
    digits = 2 if step / unit < 10 else 1
    scale = 10**digits / unit
    parts = _rounded([one.seconds * scale for one in found])
    texts = [
        f"{part / 10**digits:.{digits}f} {name} {one.title}"
        for one, part in zip(found, parts, strict=True)
        if part
    ]
    return f"Of {sum(parts) / 10**digits:.{digits}f} {name} a step: {', '.join(texts)}."


def _rounded(values: Sequence[float]) -> list[int]:
    """Whole numbers whose sum is the rounded sum: the largest remainders are rounded up."""
    down = [int(np.floor(value)) for value in values]
    rest = round(sum(values)) - sum(down)
    order = sorted(range(len(values)), key=lambda at: down[at] - values[at])
    for at in order[:rest]:
        down[at] += 1
    return down


def largest(found: Sequence[Share]) -> Share:
    """The largest part."""
    return max(found, key=lambda one: one.seconds)
