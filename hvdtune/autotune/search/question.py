"""The tuner's question for the optimiser, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvdtune.autotune.search.space import Values


@dataclass(frozen=True)
class Request:
    """A question for the optimiser (`optimiser.Problem` as plain data)."""

    space: list[dict[str, Any]]
    observations: list[dict[str, Any]]
    seed: int
    noise: float
    incumbent: int = 0
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The request as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Answer:
    """The optimiser's answer: settings to try, expected gain, posterior means and deviations."""

    proposals: Sequence[Values]
    expected_gain: float
    means: Sequence[float]
    deviations: Sequence[float]
