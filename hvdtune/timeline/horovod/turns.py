"""Which ranks hold the others up, in a timeline of Horovod's layout, which marks no steps.

Turns replace steps: a turn begins when a tensor repeats, like a step without marks. For each turn
and rank, in the terms of timeline/analysis/skew.py: *lateness* is the largest skew of an operation
in which the rank's tick was the last, *delay* the time in which any tensor waited for it. Ranks are
then judged as in a recording: with the same limits, and the same probability that equal ranks are
as late by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.analysis import skew
from hvdtune.timeline.structure.intervals import union_length

if TYPE_CHECKING:
    import pandas as pd


def turns(ops: pd.DataFrame) -> np.ndarray:
    """[operations] the number of each operation's turn, from 0. `ops`: analysis.operations()."""
    found = np.zeros(len(ops), np.int64)
    seen: set[tuple[str, str]] = set()
    turn = 0
    for at, key in enumerate(zip(ops["tensor"], ops["op"], strict=True)):
        if key in seen:
            turn += 1
            seen.clear()
        seen.add(key)
        found[at] = turn
    return found


def judged(ops: pd.DataFrame) -> int:
    """The number of turns with an operation that has ticks of at least two ranks."""
    return len(np.unique(turns(ops)[ops["skew_us"].notna().to_numpy()]))


def stragglers(ops: pd.DataFrame, ranks: Sequence[int]) -> pd.DataFrame:
    """skew.blame() of the turns that have ticks, seconds; `step` is the number of a turn. `ranks`:
    all that have ticks."""
    import pandas as pd

    numbers = turns(ops)
    known = ops["skew_us"].notna().to_numpy()
    rows = ops[known]
    turn = numbers[known]
    which = np.unique(turn)
    column = {int(number): at for at, number in enumerate(which)}
    row = {rank: at for at, rank in enumerate(ranks)}
    waits: dict[tuple[int, int], list[tuple[int, int]]] = {}
    late = np.zeros((len(ranks), len(which)))
    for rank, first, last, number in zip(
        rows["last_rank"], rows["first_ready"], rows["last_ready"], turn, strict=True
    ):
        cell = row[int(rank)], column[int(number)]
        waits.setdefault(cell, []).append((int(first), int(last)))
        late[cell] = max(late[cell], (int(last) - int(first)) / 1e6)
    delay = np.zeros(late.shape)
    for cell, intervals in waits.items():
        delay[cell] = union_length(intervals) / 1e6
    last = skew.last_in(delay, skew.MATTERS * _typical(ops, numbers))
    table = pd.DataFrame(
        {
            "rank": np.repeat(np.asarray(ranks, np.int64), len(which)),
            "step": np.tile(which, len(ranks)),
            "lateness_s": late.ravel(),
            "caused_s": delay.ravel(),
            "delay_s": delay.ravel(),
            "last": last.ravel(),
        }
    )
    return skew.blame(table, len(ranks), {})


def _typical(ops: pd.DataFrame, numbers: np.ndarray) -> float:
    """The median time from the start of a turn to that of the next, s."""
    begins = ops["begin"].astype(float).groupby(numbers).min().to_numpy()
    return float(np.median(np.diff(begins))) / 1e6 if len(begins) > 1 else 0.0
