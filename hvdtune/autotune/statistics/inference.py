"""The statistics behind the tuner's decisions, in plain Python (this runs in the training process).

Times are compared as logarithms: a difference of 0.01 is one per cent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median

LEVEL_WIDTH = 1.5  # measurements; the range over which the incumbent's measurements are averaged
LEVEL_REACH = 8 * LEVEL_WIDTH  # the weight of measurements further away is below 1e-13
CONSISTENT = 3.0  # variances that differ by less than this factor may be the same
TRIM = 0.2  # of the values, at either end of a trimmed mean
_NO_WEIGHT = 1e-100


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error and that error's degrees of freedom."""

    value: float
    error: float
    freedom: float = math.inf

    def margin(self, confidence: float) -> float:
        """How far off the truth may be to one side, at a one-sided confidence (0.99: 1 in 100)."""
        return self.error * student_quantile(confidence, self.freedom)


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution, for `probability` above one half.

    Exact for 1, 2 and infinitely many degrees of freedom, else by Hill's expansion (Algorithm 396,
    Communications of the ACM 13, 1970), which is accurate to 0.1 % from 3 on.
    """
    if not 0.5 < probability < 1:
        raise ValueError(f"a one-sided probability lies between 0.5 and 1: {probability}")
    if freedom < 1:
        raise ValueError(f"there must be at least one degree of freedom: {freedom}")
    if math.isinf(freedom):
        return NormalDist().inv_cdf(probability)
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        tail = 2 * probability - 1
        return tail * math.sqrt(2 / (1 - tail * tail))
    n, p = freedom, 2 * (1 - probability)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * p) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(p / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        lead = 1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3)
        y = ((lead + 0.5 / (n + 4)) * y - 1) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)


def expected_excess(mean: float, deviation: float) -> float:
    """E[max(0, x)] of a normal x."""
    if deviation <= 0:
        return max(0.0, mean)
    z = mean / deviation
    normal = NormalDist()
    return mean * normal.cdf(z) + deviation * normal.pdf(z)


def level(
    at: float, positions: Sequence[float], logs: Sequence[float], errors: Sequence[float]
) -> Estimate:
    """The incumbent's log step time at a position, from its measurements around it.

    A weighted mean with Gaussian weights of distance and the inverse variances: with measurements
    on both sides a linear drift cancels.
    """
    total = weighted = squares = 0.0
    for position, log, error in zip(positions, logs, errors, strict=True):
        weight = math.exp(-0.5 * ((at - position) / LEVEL_WIDTH) ** 2) / error**2
        total += weight
        weighted += weight * log
        squares += (weight * error) ** 2
    if total < _NO_WEIGHT:
        # Too far from every measurement for any weight: use the nearest one.
        nearest = min(range(len(positions)), key=lambda i: abs(positions[i] - at))
        return Estimate(logs[nearest], errors[nearest])
    return Estimate(weighted / total, math.sqrt(squares) / total)


def noise_between(logs: Sequence[float]) -> Estimate:
    """Standard deviation of one measurement, from successive ones of the same settings.

    From the median absolute successive difference, which neither slow drift nor a few disturbed
    measurements affect. It is returned as the estimate's `error`, with the value 0; the degrees of
    freedom of a median are about four tenths of the differences.
    """
    differences = [abs(after - before) for before, after in itertools.pairwise(logs)]
    if not differences:
        return Estimate(0.0, 0.0, 0.0)
    # 1.4826 turns a median of absolute normal values into a standard deviation; a difference has
    # the variance of two measurements.
    deviation = 1.4826 * median(differences) / math.sqrt(2)
    return Estimate(0.0, deviation, 0.4 * len(differences))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of at least two values.

    `statistics.stdev` adds fractions, which is exact, but takes ten times as long.
    """
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def trimmed(values: Sequence[float]) -> Estimate:
    """The mean without TRIM of the values at either end, with Yuen's error (Biometrika 61, 1974).

    If values are mostly alike but a few are far off, it is much more precise than the mean.
    Raises ValueError if there are fewer than two.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"a mean with an error needs at least two values: there are {n}")
    out = int(TRIM * n)
    kept = sorted(values)[out : n - out]
    # Winsorized: a value that is cut counts as the nearest one that is kept.
    spread = deviation([kept[0]] * out + kept + [kept[-1]] * out)
    error = spread * math.sqrt((n - 1) / (len(kept) * (len(kept) - 1)))
    return Estimate(fmean(kept), error, len(kept) - 1)


def paired(differences: Sequence[float], noise: Estimate) -> Estimate:
    """The mean of paired log differences, with an error that luck cannot make too small.

    `noise` is what `noise_between` found in earlier measurements; a difference has twice its
    variance. A few pairs may agree by chance, so the variance is at least that of both together;
    pairs that scatter CONSISTENT times as much are judged by themselves alone. `noise` ignores a
    few disturbed measurements, and these usually cause such scatter, so the mean is then a trimmed
    one.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"a paired comparison needs at least two pairs: there are {n}")
    mean = fmean(differences)
    own = deviation(differences) ** 2
    known = 2 * noise.error**2
    if noise.freedom < 1 or own > CONSISTENT * known:
        return trimmed(differences)
    freedom = n - 1 + noise.freedom
    pooled = (own * (n - 1) + known * noise.freedom) / freedom
    return Estimate(mean, math.sqrt(max(own, pooled) / n), freedom)
