"""How late equal ranks are by chance alone: no rank is blamed for that.

| symbol | meaning | shape, unit |
|---|---|---|
| n | ranks | |
| d_s | how long step s was held up by the rank that was last in it | [S] s |
| C_r | Σ d_s over the steps that rank r held up | [n] s |

The null hypothesis: the ranks are equal, so each of them holds up a step with probability 1/n,
whatever d_s is. So one rare long delay proves nothing about a rank, but ten of them on the same
rank do. If neighbouring steps are alike (a rank that is late now is also late in the next step), v
of them count as one: see `neighbours`.
"""

from __future__ import annotations

from math import comb

import numpy as np

from hvdtune.timeline.analysis.trend import inflation

#: With fewer steps, the recording does not show whether neighbours are alike.
FEWEST = 8
#: A rank or group is named if equal ranks would be as late with less than this probability.
RARE = 1e-3
#: The pauses of a named rank are called periodic if chance makes that less probable than this.
UNLIKELY = 1e-2
#: Values of θ · (a typical delay) over which the bound is minimised.
_TILTS = np.geomspace(1e-2, 1e3, 60)


def neighbours(lateness: np.ndarray, first: int = 0, behind: int = 0) -> float:
    """v ≥ 1: v neighbouring steps say as much about the ranks as one independent step.

    `lateness`: [n, S]. Each rank's lateness less the mean of the others' is modelled as an AR(1)
    series around a level, with another level in the steps first … behind − 1. φ of all ranks
    together is estimated from the order of the values, because lateness has a long tail.
    v = (1 + φ) / (1 − φ).
    """
    import pandas as pd

    count, steps = lateness.shape
    if count < 2 or steps < FEWEST:
        return 1.0
    own = apart(lateness)
    pieces = np.split(own, [first, behind], axis=1) if behind - first < steps else [own]
    pieces = [piece for piece in pieces if piece.shape[1] >= FEWEST]
    above = below = 0.0
    for piece in pieces:
        order = pd.DataFrame(piece).rank(axis=1).to_numpy() - (piece.shape[1] + 1) / 2
        above += float((order[:, 1:] * order[:, :-1]).sum())
        below += float((order * order).sum())
    phi = above / below if below > 1e-6 else 0.0
    seen = sum(piece.shape[1] for piece in pieces)
    if phi < 2 / np.sqrt(max(seen * (count - 1), 1)):
        return 1.0  # independent steps could show the same
    # The estimate has this bias, and may also be too small by a standard error.
    phi += (1 + 3 * phi) * len(pieces) / seen + np.sqrt((1 - phi**2) / seen)
    return inflation(min(0.98, phi))


def clusters(events: np.ndarray) -> float:
    """v ≥ 1 (see neighbours) of events, [S] bool: how much they occur in neighbouring steps."""
    steps, share = len(events), float(events.mean()) if len(events) else 0.0
    if not 0 < share < 1 or steps < FEWEST:
        return 1.0
    own = events - share
    phi = float((own[1:] * own[:-1]).sum() / (own * own).sum())
    return inflation(min(0.98, phi)) if phi >= 2 / np.sqrt(steps) else 1.0


def apart(lateness: np.ndarray) -> np.ndarray:
    """[n, S] s: each rank's lateness less the mean of the others'."""
    return lateness - (lateness.sum(axis=0) - lateness) / (len(lateness) - 1)


def longer_by_chance(lateness: np.ndarray, alike: float) -> np.ndarray:
    """[n] probability that among equal ranks the mean of any one rank's lateness, less that of the
    others, is as large: Student's t; `alike` steps (see neighbours) count as one."""
    from scipy.special import stdtr

    count, steps = lateness.shape
    worth = steps / alike
    if count < 2 or worth <= 2:
        return np.ones(count)
    own = apart(lateness)
    error = own.std(axis=1, ddof=1) / np.sqrt(worth)
    score = own.mean(axis=1) / np.maximum(error, 1e-12)
    probability: np.ndarray = np.minimum(1.0, count * stdtr(worth - 1, -score))
    return probability


def caused_by_chance(delays: np.ndarray, ranks: int, alike: float = 1.0) -> np.ndarray:
    """[n] upper bounds of the probability that among equal ranks any one rank's C_r is as large.

    `delays`: [n, S] s, d_s in the row of the rank that held step s up, else 0. `ranks`: n, at least
    as many as there are rows. Chernoff's bound, P(C_r ≥ c) ≤ min over θ of
    exp(Σ_s log(1 + (e^{θ d_s} − 1)/n) − θ c), times n for the n looks. The exponent is divided by
    `alike`, because only S / `alike` steps are independent.
    """
    caused = delays.sum(axis=1)
    costs = delays.sum(axis=0)
    costs = costs[costs > 0]
    if not len(costs) or ranks < 2:
        return np.ones(len(delays))
    tilt = _TILTS[:, None] / float(np.median(costs))
    logs = np.logaddexp(np.log(1 - 1 / ranks), tilt * costs - np.log(ranks)).sum(axis=1)
    exponent = (logs[:, None] - tilt * caused).min(axis=0) / alike + np.log(ranks)
    return np.exp(np.minimum(exponent, 0.0))


def apart_by_chance(steps: int, apart: int, group: int, ranks: int) -> float:
    """Probability that among equal ranks some group of `group` ranks is later than all others in at
    least `apart` of `steps` steps. In one step, a given group is later with probability
    1 / C(n, group)."""
    groups = comb(ranks, group)
    return min(1.0, groups * at_least(apart, steps, 1 / groups))


def at_least(count: int, trials: int, probability: float) -> float:
    """Probability that at least `count` of `trials` independent trials succeed."""
    from scipy.special import bdtrc

    if not 0 < count <= trials:
        return float(count <= 0)
    return float(bdtrc(count - 1, trials, probability))


def regular_by_chance(at: np.ndarray) -> float:
    """Probability that events at random steps have gaps as equal as those of `at` (ascending).

    Such gaps are geometric: the median gap g occurs with probability 0.35 / g. The others are
    compared with it in two looks: equal to it, or near to it or twice it (see period).
    """
    if len(at) < 3:
        return 1.0
    gaps = np.diff(at)
    typical = float(np.median(gaps))
    if typical < 2:
        return 1.0
    near = max(1.0, 0.1 * typical)
    times = np.maximum(1, np.round(gaps / typical))
    alike = (np.abs(gaps - times * typical) <= near) & (times <= 2)
    each = 0.35 / typical
    looks = [((gaps == typical).sum(), each)]
    if typical > 3:
        looks.append((alike.sum(), 1.5 * each * (2 * near + 1)))
    others = len(gaps) - 1
    return min(1.0, 2 * min(at_least(n - 1, others, min(1.0, q)) for n, q in looks))


def period(at: np.ndarray) -> int:
    """The period of the steps `at` (ascending), in steps; 0 if they are at random.

    They are periodic if four fifths of the gaps are within a tenth (at least one step) of the
    median gap, or a multiple of it: some of the events may have cost nothing. Also, random events
    must hardly ever be as regular (UNLIKELY).
    """
    if len(at) < 4 or regular_by_chance(at) >= UNLIKELY:
        return 0
    gaps = np.diff(at)
    typical = int(np.median(gaps))
    if typical < 2:
        return 0
    times = np.maximum(1, np.round(gaps / typical))
    near = np.abs(gaps - times * typical) <= max(1.0, 0.1 * typical)
    # Any small gap is "near" a multiple of 2 or 3, so for these all gaps must be equal.
    exact = gaps == typical
    regular = (exact if typical <= 3 else near & (times <= 2)).mean()
    return typical if regular >= 0.8 else 0
