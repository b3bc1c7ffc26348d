"""What each rank spent its own time on, by its marks of phases. Definitions: docs/metrics.md.

A rank's own time is the time in which its main thread was not blocked in the engine. So the phases
of a step, and the time outside phases, sum exactly to its `compute_s`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline import schema
from hvdtune.timeline.record.layout import NONE, Mark, RankRecording
from hvdtune.timeline.structure.joint import Joint, View
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

    from hvdtune.timeline.analysis.answers import Analysis

INPUT, FORWARD, BACKWARD, UPDATE = "input", "forward", "backward", "update"
EVALUATION, CHECKPOINT = "evaluation", "checkpoint"
#: Time that no mark covers: between the update and the next input; before the forward pass, from
#: the input on (from the update on, if no input was marked); the rest.
BETWEEN, BEFORE, OTHER = "between", "before", "other"
#: Phases that the recorder marks, and those derived from them, in the order of a step.
KNOWN = (BETWEEN, INPUT, BEFORE, FORWARD, BACKWARD, UPDATE, EVALUATION, CHECKPOINT)
#: Training itself: a user's phase around these is split into them.
_TRAINING = {FORWARD, BACKWARD, UPDATE}
#: Names that have another meaning in tables.
_TAKEN = {"rank", "step", OTHER}
#: A user's phases beyond these many count as "other".
MOST_OF_USER = 12
#: Ranks differ in a phase if one differs from the typical one by this share of a step, and by this
#: many standard errors.
DIFFERS, SURE = 0.05, 3.0
#: A report shows at most this many ranks: those that differ most from the typical one.
MOST_RANKS = 12


@dataclass(frozen=True)
class Pieces:
    """A rank's phases: disjoint intervals in order, [N] ns. `name`: the phase of each."""

    begin: np.ndarray
    end: np.ndarray
    name: np.ndarray

    def of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Begins and ends of one phase."""
        own = self.name == name
        return self.begin[own], self.end[own]


def pieces(one: RankRecording) -> Pieces:
    """The innermost phase at each time; a user's phase without training inside owns all its time.

    The end of a phase also ends those inside it, and a phase that begins again has ended before: a
    program may leave one with an exception, or records may be lost.
    """
    marks = one.marks[one.marks["kind"] == int(Mark.PHASE)]
    marks = marks[np.argsort(marks["time"], kind="stable")]
    begins: list[int] = []
    ends: list[int] = []
    names: list[str] = []
    stack: list[tuple[str, int]] = []  # with how many pieces there were at its begin
    trained: list[bool] = []  # of the stack: training is in it
    since = 0

    def leave(name: str) -> None:
        while stack:
            left, first = stack.pop()
            inside = trained.pop()
            if left not in KNOWN and not inside:
                names[first:] = [left] * (len(names) - first)
            elif trained:
                trained[-1] = trained[-1] or inside
            if left == name:
                return

    for time, value, text in zip(
        marks["time"].tolist(), marks["value"].tolist(), marks["text"].tolist(), strict=True
    ):
        name = one.texts[text] if text != NONE and text < len(one.texts) else "?"
        name = f"{name} (mark)" if name in _TAKEN else name
        if stack and time > since:
            begins.append(since)
            ends.append(time)
            names.append(stack[-1][0])
        since = time
        if any(name == open_ for open_, _ in stack):
            leave(name)
        if value:
            stack.append((name, len(names)))
            trained.append(name in _TRAINING)
    return Pieces(
        np.array(begins, np.int64),
        np.array(ends, np.int64),
        np.array(names, object),
    )


class _Covered:
    """How much of a rank's own time before any moment is within some intervals."""

    def __init__(self, view: View, begin: np.ndarray, end: np.ndarray) -> None:
        self.view = view
        self.begin, self.end = begin, end
        length = self.own(end) - self.own(begin)
        self.before = np.concatenate([[0], np.cumsum(length)])

    def own(self, times: np.ndarray) -> np.ndarray:
        own: np.ndarray = times - self.view.blocked.until(times)
        return own

    def until(self, times: np.ndarray) -> np.ndarray:
        """ns before each of `times`."""
        if not len(self.begin):
            return np.zeros(np.shape(times), np.int64)
        at = np.searchsorted(self.begin, times, side="right") - 1
        near = np.maximum(at, 0)
        inside = self.own(np.clip(times, self.begin[near], self.end[near]))
        return np.where(at >= 0, self.before[near] + inside - self.own(self.begin[near]), 0)

    def within(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """ns between each of `begin` and of `end`."""
        return self.until(end) - self.until(begin)


def phases(joint: Joint, steps: Steps, waterfall: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and step: rank, step, and a column of seconds for each phase, `other` last;
    they sum to the waterfall's `compute_s`; to the step if that is unknown, since phases then
    contain waits. No rows if no rank has marks of phases."""
    import pandas as pd

    found = {rank: pieces(view.recording) for rank, view in sorted(joint.views.items())}
    names = _names(found)
    if not names or not len(steps):
        return pd.DataFrame(columns=["rank", "step", OTHER])
    frames = []
    for rank, own in found.items():
        rows = waterfall[waterfall["rank"] == rank]
        compute = rows["compute_s"].fillna(rows["step_s"]).to_numpy(float)
        columns = _of_rank(joint.views[rank], own, steps, names)
        covered = sum(columns.values(), np.zeros(len(steps)))
        # Records that contradict each other may cover more than the computing: scale them down.
        shrunk = np.where(covered > compute, compute / np.maximum(covered, 1e-12), 1.0)
        columns = {name: values * shrunk for name, values in columns.items()}
        rest = compute - sum(columns.values(), np.zeros(len(steps)))
        frames.append(
            pd.DataFrame(
                {"rank": rank, "step": steps.number, **columns, OTHER: np.maximum(rest, 0.0)}
            )
        )
    table = pd.concat(frames, ignore_index=True)
    empty = [name for name in (BETWEEN, BEFORE) if not table[name].any()]
    return table.drop(columns=empty)


def _names(found: dict[int, Pieces]) -> list[str]:
    """KNOWN, then the user's phases, the longest first; nothing if no rank has any."""
    lengths: Counter[str] = Counter()
    for one in found.values():
        for name in set(one.name.tolist()):
            begin, end = one.of(name)
            lengths[name] += int((end - begin).sum())
    if not lengths:
        return []
    others = [name for name, _ in lengths.most_common() if name not in KNOWN]
    known = [name for name in KNOWN if name in lengths or name in (BETWEEN, BEFORE)]
    return [*known, *others[:MOST_OF_USER]]


def _of_rank(view: View, own: Pieces, steps: Steps, names: list[str]) -> dict[str, np.ndarray]:
    """One rank's phases → [S] s."""
    begin, end = steps.begin[view.rank], steps.end[view.rank]
    result = {name: _Covered(view, *own.of(name)).within(begin, end) / 1e9 for name in names}
    if steps.found_from != "marks":  # a step begins somewhere in the backward pass
        return result
    marked = _Covered(view, own.begin, own.end)
    forward = _first_within(own.of(FORWARD)[0], begin, end)
    loading = _first_within(own.of(INPUT)[0], begin, forward)
    loading = np.where(loading < forward, loading, begin)

    def unmarked(since: np.ndarray, until: np.ndarray) -> np.ndarray:
        whole = marked.own(until) - marked.own(since)
        return np.maximum(whole - marked.within(since, until), 0) / 1e9

    known = forward < end
    result[BETWEEN] = result[BETWEEN] + np.where(known, unmarked(begin, loading), 0.0)
    result[BEFORE] = result[BEFORE] + np.where(known, unmarked(loading, forward), 0.0)
    return result


def _first_within(times: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The first of `times` (ascending) in each [begin, end); the end if there is none."""
    following = np.append(times, np.iinfo(np.int64).max)
    return np.minimum(following[np.searchsorted(times, begin)], end)


# ---- who spends more where -----------------------------------------------------------------------


def excess(analysis: Analysis, steps: np.ndarray, ranks: list[int]) -> dict[str, float]:
    """Phase → s by which `ranks` take longer in it than the typical other rank, on average over the
    steps with the numbers `steps`; if these are all ranks, than in the other steps. Empty if
    unknown."""
    table = analysis.phases
    if table.empty:
        return {}
    names = [name for name in table.columns if name not in ("rank", "step")]
    mine = table["rank"].isin(ranks)
    chosen = table["step"].isin(steps)
    others = table[chosen & ~mine] if (chosen & ~mine).any() else table[~chosen]
    own = table[chosen & mine]
    if own.empty or others.empty:
        return {}
    usual = others.groupby("rank")[names].mean().median()
    more = own[names].mean() - usual
    return {str(name): float(more[name]) for name in names}


def where(analysis: Analysis, steps: np.ndarray, ranks: list[int]) -> str:
    """The phase with at least half of the extra time of `ranks` in the steps with the numbers
    `steps` (see excess); "" if there is none, or it has no mark."""
    more = {name: s for name, s in excess(analysis, steps, ranks).items() if s > 0}
    if not more:
        return ""
    name = max(more, key=lambda one: more[one])
    return name if name != OTHER and more[name] >= 0.5 * sum(more.values()) else ""


def on_device(analysis: Analysis) -> bool:
    """Whether work was submitted to a device, so that phases end before the work is done."""
    for view in analysis.joint.views.values():
        marks = view.recording.marks
        if ((marks["kind"] == int(Mark.PHASE)) & (marks["value"] == 2)).any():
            return True
    return False


def numbers(analysis: Analysis) -> schema.Phases | None:
    """The phases for a document; None without marks of phases."""
    table = analysis.phases
    if table.empty:
        return None
    names = [str(name) for name in table.columns if name not in ("rank", "step")]
    by_rank = table.groupby("rank")[names].mean()
    step = float(analysis.waterfall["step_s"].mean())
    far = (by_rank - by_rank.median()).abs().max(axis=1).sort_values(ascending=False, kind="stable")
    shown = sorted(far.index[:MOST_RANKS])
    return {
        "parts": [
            {"name": name, "title": title(name), "differs": _differs(table, name, step)}
            for name in names
        ],
        "mean": {name: float(value) for name, value in by_rank.mean().items()},
        "ranks": [
            {"rank": int(rank), "parts_s": {name: float(by_rank.loc[rank, name]) for name in names}}
            for rank in shown
        ],
        "left_out": len(by_rank) - len(shown),
    }


def _differs(table: pd.DataFrame, name: str, step: float) -> bool:
    """See DIFFERS; time that all ranks have in common in a step does not count. `step`: s."""
    wide = table.pivot(index="step", columns="rank", values=name)
    off = wide.sub(wide.median(axis=1), axis=0)
    error = np.maximum(off.std() / np.sqrt(max(len(off), 1)), 1e-12)
    mean = off.mean().abs()
    return bool(((mean >= DIFFERS * step) & (mean >= SURE * error)).any())


def title(name: str) -> str:
    """A phase's title in tables."""
    return {
        BETWEEN: "between update and input",
        INPUT: "waiting for input",
        BEFORE: "before the forward pass",
        FORWARD: "forward pass",
        BACKWARD: "backward pass",
        UPDATE: "optimizer's update",
        EVALUATION: "evaluation (no gradients)",
        CHECKPOINT: "checkpoint",
        OTHER: "not marked",
    }.get(name, name)
