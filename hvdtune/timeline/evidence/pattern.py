"""When a cause costs time: its share of the time, and the order in which ranks take turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvdtune.timeline.analysis import chance
from hvdtune.timeline.evidence.case import Case

#: Ranks are late in turn if in this share of the steps the late rank is that of one round before.
IN_TURN = 0.8


def held_up(case: Case, ranks: Sequence[int]) -> np.ndarray:
    """[S] s by which these ranks held each step up; 0 if another rank did, or none."""
    table = case.analysis.lateness
    own = table[table["rank"].isin(ranks)]
    delays: np.ndarray = (own["delay_s"] * own["last"]).groupby(own["step"]).max().to_numpy()
    return delays


def share(case: Case, delays: np.ndarray) -> float:
    """Share of all recorded steps' time."""
    return float(delays.sum() / case.durations.sum())


def by(delays: np.ndarray) -> float:
    """Mean over the steps that were held up, s."""
    late = delays[delays > 0]
    return float(late.mean()) if len(late) else 0.0


def _most(who: np.ndarray) -> int:
    """The most frequent value other than -1; -1 if there is none."""
    return int(np.bincount(who[who >= 0]).argmax()) if (who >= 0).any() else -1


def turns(case: Case) -> list[int]:
    """The ranks in the order in which they are late in each round; empty without an order."""
    table = case.analysis.lateness
    ranks = sorted(set(table["rank"].tolist()))
    late = table.pivot(index="rank", columns="step", values="last").to_numpy().astype(bool)
    who = np.where(late.any(axis=0), late.argmax(axis=0), -1)
    least = chance.RARE / max(2 * len(ranks), 1)
    for length in range(2, 2 * len(ranks) + 1):
        both = (who[length:] >= 0) & (who[:-length] >= 0)
        same = int((who[length:] == who[:-length])[both].sum())
        found = np.array([_most(who[phase::length]) for phase in range(length)])
        if both.sum() < len(both) / 2 or same < IN_TURN * both.sum() or len(set(found)) < 2:
            continue
        most = np.bincount(who[who >= 0]).max() / (who >= 0).sum()
        if chance.at_least(same, int(both.sum()), most) < least and (found >= 0).all():
            return [ranks[at] for at in np.roll(found, -int(found.argmin()))]
    return []
