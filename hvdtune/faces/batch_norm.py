"""Moments of batch normalisation over the joined batch of all ranks.

Every channel is normalised by the mean and variance of its values on all ranks. With n_r values of
a channel on rank r, their mean m_r and variance v_r (divided by n_r):

    N    = sum n_r                     m = sum n_r m_r / N
    v    = sum n_r (v_r + (m_r - m)²) / N
    y    = (x - m) s w + b             s = 1 / sqrt(v + eps)
    dx   = w s (dy - S0 / N - (x - m) s² S1 / N)
    S0   = sum of dy over the joined batch,  S1 = sum of dy (x - m) over the joined batch

The gradients of w and b are this rank's share of their sums, like those of every other parameter:
their sum over the ranks is that of the joined batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdtune.core import tables
from hvdtune.core.reduce_ops import Sum

Channels = npt.NDArray[Any]  # (channels,)

_NAME = "sync_batch_norm"
_REFUSED = -1.0  # instead of a count: this rank's input cannot be normalised


@dataclass(frozen=True)
class Moments:
    """The moments of a batch: the values per channel; mean and variance by channel, float64."""

    count: float
    mean: Channels
    variance: Channels


def refuse(channels: int) -> None:
    """Stand in for `joined` if this rank's input is unusable: the others' raises. Collective."""
    nothing = np.zeros(channels)
    _gather(_REFUSED, nothing, nothing)


def joined(own: Moments, eps: float) -> Moments:
    """The moments of the joined batch. Collective over all ranks.

    Raises ValueError if a rank refuses, and if the joined batch has a single value per channel.
    """
    with np.errstate(all="ignore"):  # infinities and NaN pass through, as in any other layer
        invstd = 1.0 / np.sqrt(own.variance + eps)
    counts, means, invstds = _gather(own.count, own.mean, invstd)
    refusing = np.flatnonzero(counts == _REFUSED)
    if refusing.size:
        raise ValueError(
            f"SyncBatchNorm: the input of rank {refusing[0]} cannot be normalised; its own error "
            "says why."
        )
    total = float(counts.sum())
    if total <= 1:
        raise ValueError(
            "SyncBatchNorm expected more than 1 value per channel when training, the joined batch "
            f"of all ranks has {total:g}."
        )
    weights = (counts / total)[:, None]
    with np.errstate(all="ignore"):
        mean = (weights * means).sum(0)
        variances = invstds**-2.0 - eps + (means - mean) ** 2
        return Moments(total, mean, np.maximum((weights * variances).sum(0), 0.0))


def sum_over_ranks(sum_dy: Channels, sum_dy_xmu: Channels) -> None:
    """Replace this rank's S0 and S1 with those of the joined batch, in place. Collective."""
    tables.reduce({f"{_NAME}.sum_dy": sum_dy, f"{_NAME}.sum_dy_xmu": sum_dy_xmu}, Sum)


def _gather(count: float, mean: Channels, invstd: Channels) -> list[Any]:
    """Counts (ranks,), means and inverse deviations (ranks, channels) of all ranks."""
    return tables.gather(
        {
            f"{_NAME}.count": np.array([count], dtype=np.float64),
            f"{_NAME}.mean": mean.reshape(1, -1),
            f"{_NAME}.invstd": invstd.reshape(1, -1),
        }
    )
