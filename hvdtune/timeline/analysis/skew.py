"""Which ranks are late, how often, and what that costs the others. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.analysis import chance
from hvdtune.timeline.analysis.trend import course
from hvdtune.timeline.analysis.waterfall import Waterfall
from hvdtune.timeline.structure.joint import Joint
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

#: A rank holds a step up if another rank waited for it for this share of the median step …
MATTERS = 0.02
#: … and this many times the uncertainty of the clocks.
BOUNDS = 2
#: Holding up this share of all steps is persistent.
PERSISTENT = 0.6
#: A transient straggler holds up this share of the steps of its interval, and this share of all its
#: delay is in the interval.
DENSE = 0.6
MOST_OF_IT = 0.6
#: A few steps prove nothing about a rank, unless it held one of them up this many times as long as
#: any rank held up a step outside the interval.
OUTSTANDING = 50
#: A straggler is recurring from this many pauses on.
RECURRING = 3
#: This many steps in a row prove something if they are held up this many times as long as any
#: other: a delay that wanders by chance would also take the values in between.
LASTING, FAR_LASTING = 5, 5
#: Regular pauses prove something about a rank only if chance causes as much with less probability.
DOUBTFUL = 0.1
#: Pauses are judged apart from other delays if they are this many times as long.
FAR = 10


def lateness(joint: Joint, steps: Steps, parts: Waterfall) -> pd.DataFrame:
    """One row per rank and step.

    | column | formula |
    |---|---|
    | lateness_s | max over the step's batches of A_r(b) − F(b) |
    | caused_s | Σ over ranks of the time they were blocked because this rank was late |
    | delay_s | the same, max over ranks: how much shorter the step would be without it |
    | last | this rank has the largest delay_s of the step, and it matters (see MATTERS) |

    If the recording does not show when the program waits, caused_s and delay_s are the most that
    they may be (waits.at_most).
    """
    import pandas as pd

    ranks = sorted(joint.arrivals)
    delays = np.array([parts.delay[rank] for rank in ranks]).reshape(len(ranks), len(steps)) / 1e9
    last = last_in(delays, _threshold(joint, steps))
    frames = []
    for at, rank in enumerate(ranks):
        frames.append(
            pd.DataFrame(
                {
                    "rank": rank,
                    "step": steps.number,
                    "lateness_s": _lateness(joint, steps, rank) / 1e9,
                    "caused_s": parts.caused[rank] / 1e9,
                    "delay_s": delays[at],
                    "last": last[at],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _threshold(joint: Joint, steps: Steps) -> float:
    """The least delay, seconds, with which a step counts as held up."""
    durations = [steps.end[rank] - steps.begin[rank] for rank in steps.end]
    typical = float(np.median(np.concatenate(durations))) if len(steps) else 0.0
    return max(MATTERS * typical, BOUNDS * joint.recording.clock_bound_ns) / 1e9


def last_in(delays: np.ndarray, threshold: float) -> np.ndarray:
    """[ranks, S] bool: the rank that holds each step up by `threshold` s or more, at most one per
    step. `delays`: [ranks, S] s."""
    result = np.zeros(delays.shape, bool)
    if delays.size:
        worst = delays.argmax(axis=0)
        columns = np.arange(delays.shape[1])
        result[worst, columns] = (delays[worst, columns] >= threshold) & (
            delays[worst, columns] > 0
        )
    return result


def _lateness(joint: Joint, steps: Steps, rank: int) -> np.ndarray:
    """[S] ns."""
    result = np.zeros(len(steps))
    arrived = joint.arrivals[rank]
    use = np.flatnonzero((joint.batch_has(rank)) & (steps.batch_step >= 0))
    if len(use):
        step = steps.batch_step[use]
        order = np.argsort(step, kind="stable")
        edges = np.concatenate([[0], np.flatnonzero(np.diff(step[order])) + 1])
        late = (arrived - joint.first)[use][order]
        result[step[order][edges]] = np.maximum.reduceat(late, edges)
    return result


def stragglers(joint: Joint, steps: Steps, late: pd.DataFrame) -> pd.DataFrame:
    """blame() of a recording's ranks. `late` is from lateness() of the same steps."""
    hosts = {rank: view.recording.identity.host for rank, view in joint.views.items()}
    return blame(late, joint.recording.size, hosts)


def blame(late: pd.DataFrame, size: int, hosts: Mapping[int, str]) -> pd.DataFrame:
    """One row per rank, the costliest first. `late`: the columns of lateness(). `size`: ranks of
    the job. `hosts`: by rank, as far as known.

    | column | formula |
    |---|---|
    | kind | "persistent", "transient", "recurring" (now and then, throughout) or "" |
    | chance | probability that equal ranks cause as much; from chance.RARE on, kind is mostly "" |
    | period | steps from pause to pause of a recurring one; 0: at random, or not recurring |
    | steps_last_share | share of the steps that it held up |
    | caused_s | Σ caused_s: the cost to all others together |
    | delay_s | Σ delay_s over the steps that it held up: how much shorter the job would be |
    | typical_late_s | median lateness_s over the steps of that interval that it held up |
    | from_step, to_step | the interval in which it held steps up; if kind is "", first and last |
    | interval_share | share of the steps of that interval that it held up |
    """
    import pandas as pd

    rows = []
    by_rank = [(int(rank), own) for rank, own in late.groupby("rank", sort=True)]
    charged = np.array([own["delay_s"] * own["last"] for _, own in by_rank])
    lateness = np.array([own["lateness_s"] for _, own in by_rank])
    for at, (rank, own) in enumerate(by_rank):
        last = own["last"].to_numpy()
        delay = own["delay_s"].to_numpy()
        by_chance = _by_chance(charged, lateness, size, at, last, delay)
        kind, first, final = _kind(last, delay, charged.sum(axis=0), by_chance, lateness, at)
        inside = slice(first, final + 1)
        paused = pauses(last, delay) if kind == "recurring" else np.zeros(len(last), bool)
        told = (paused if kind == "recurring" else last)[inside]
        rows.append(
            {
                "rank": rank,
                "host": hosts.get(rank, ""),
                "kind": kind,
                "steps_last_share": float(last.mean()) if len(last) else 0.0,
                "caused_s": float(own["caused_s"].sum()),
                "delay_s": float(delay[last].sum()),
                "typical_late_s": float(np.median(own["lateness_s"].to_numpy()[inside][told]))
                if told.any()
                else 0.0,
                "from_step": int(own["step"].iloc[first]) if last.any() else -1,
                "to_step": int(own["step"].iloc[final]) if last.any() else -1,
                "interval_share": float(last[inside].mean()) if last.any() else 0.0,
                "chance": by_chance,
                "period": chance.period(own["step"].to_numpy()[paused]),
            }
        )
    columns = ["rank", "host", "kind", "steps_last_share", "caused_s", "delay_s"]
    columns += ["typical_late_s", "from_step", "to_step", "interval_share", "chance", "period"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values(["delay_s", "rank"], ascending=[False, True], ignore_index=True)


def _kind(
    last: np.ndarray,
    delay: np.ndarray,
    costs: np.ndarray,
    by_chance: float,
    lateness: np.ndarray,
    at: int,
) -> tuple[str, int, int]:
    """The kind, and the interval [first, final] of steps' indices. `costs`: [S] s, how long any
    rank held each step up. `by_chance`: see _by_chance. `lateness`: [ranks, S] s, this rank's in
    row `at`.

    The interval is the one with the largest excess of steps held up by much over other steps
    (maximum subarray, +1 and −1).
    """
    if not last.any():
        return "", 0, -1
    significant = by_chance < chance.RARE
    held = np.flatnonzero(last)
    whole = int(held[0]), int(held[-1])
    if significant and last.mean() >= PERSISTENT:
        return "persistent", *whole
    much = pauses(last, delay)
    first, final = _densest(much)
    share = delay[first:final][last[first:final]].sum() / max(delay[last].sum(), 1e-12)
    if last[first:final].mean() >= DENSE and share >= MOST_OF_IT:
        elsewhere = float(np.delete(costs, np.s_[first:final]).max(initial=0.0))
        outstanding = delay[first:final].max() >= OUTSTANDING * elsewhere
        inside = float(np.median(delay[first:final][last[first:final]]))
        outstanding |= final - first >= LASTING and inside >= FAR_LASTING * elsewhere
        if significant or outstanding or _another_level(lateness, at, first, final):
            return "transient", first, final - 1
    recurs = significant or _regular(much, costs, by_chance)
    return ("recurring" if recurs and much.sum() >= RECURRING else ""), *whole


def _another_level(lateness: np.ndarray, at: int, first: int, behind: int) -> bool:
    """Whether the rank's lateness has another level in about these steps."""
    if len(lateness) < 2:
        return False
    found = course(chance.apart(lateness)[at])
    if found.kind not in ("interval", "shift") or found.growth <= 0:
        return False
    common = min(behind, found.final + 1) - max(first, found.first)
    return common >= MOST_OF_IT * (max(behind, found.final + 1) - min(first, found.first))


def _densest(much: np.ndarray) -> tuple[int, int]:
    """Steps first … behind: the maximum subarray, +1 for a step held up by much, −1 for others."""
    score = np.concatenate([[0], np.cumsum(np.where(much, 1, -1))])
    lowest = np.minimum.accumulate(score)
    behind = int((score - lowest).argmax())
    return int(score[: behind + 1].argmin()), behind


def _by_chance(
    charged: np.ndarray,
    lateness: np.ndarray,
    ranks: int,
    at: int,
    last: np.ndarray,
    delay: np.ndarray,
) -> float:
    """Probability that equal ranks cause as much as the one in row `at`. `charged`, `lateness`:
    [ranks, S] s. If neighbouring steps are alike, the mean also shows a rank that is late in most
    steps. If its pauses, and equally long ones of others, are FAR longer than any other lateness,
    only the pauses of neighbouring steps are compared, not their lateness."""
    much = pauses(last, delay)
    costs = charged.sum(axis=0)
    long = costs >= costs[much].min(initial=np.inf)
    others = lateness.max(axis=0)[~long]
    if (
        0 < len(others) < len(long)
        and last.mean() < PERSISTENT
        and (costs[long].min() >= FAR * others.max())
    ):
        alike = chance.clusters(much)
    else:
        alike = chance.neighbours(lateness, *_densest(much))
    found = float(chance.caused_by_chance(charged, ranks, alike)[at])
    if alike > 1 and last.mean() >= PERSISTENT:
        alike = chance.neighbours(lateness)
        found = min(found, float(chance.longer_by_chance(lateness, alike)[at]))
    return found


def _regular(much: np.ndarray, costs: np.ndarray, by_chance: float) -> bool:
    """Whether a few pauses prove something about a rank: they are regular, and chance rarely causes
    both; or their gaps are equal and no other step is held up nearly as much."""
    at = np.flatnonzero(much)
    rare = by_chance * chance.regular_by_chance(at) < chance.RARE
    if rare and by_chance < DOUBTFUL and chance.period(at):
        return True
    alone = costs[much].min(initial=np.inf) >= FAR * costs[~much].max(initial=0.0)
    gaps = np.diff(at)
    return len(at) >= RECURRING and alone and bool(np.ptp(gaps) == 0 and gaps[0] > 3)


def pauses(last: np.ndarray, delay: np.ndarray) -> np.ndarray:
    """[S] bool: the steps that the rank held up by a large delay."""
    return last & (delay >= _much(delay[last])) if last.any() else last


def _much(delays: np.ndarray) -> float:
    """Half the delay of the step that contains the median second of all delay.

    The noise around a slow phase may hold up many steps by a little; this limit keeps it from
    lengthening the phase or making it look mild.
    """
    ordered = np.sort(delays)
    reached = np.cumsum(ordered)
    return float(ordered[np.searchsorted(reached, reached[-1] / 2)]) / 2
