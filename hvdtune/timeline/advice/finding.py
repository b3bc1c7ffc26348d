"""One cause of lost time: what is the case, what to do, and what that is expected to give."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot

#: Smaller expected gains are not worth a sentence.
WORTH = 0.02
#: … nor are those that may as well give less than this.
SURELY = 0.005
#: An expected gain is off by this share of it and this share of the step, in nine of ten cases, if
#: nothing else is known (docs/report.md, "How right the expected gains are").
RELATIVE, ABSOLUTE = 0.25, 0.025


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    kind: stable word for programs. sentence: what is the case, with rank, host, tensor or setting.
    action: what to change, exactly. gain: expected share of the recorded steps' time saved, 0..1.
    evidence: the numbers behind it; names end in their unit. between: the least and the most that
    it may save, where the question knows better than `interval` does.
    """

    kind: str
    sentence: str
    action: str
    gain: float
    evidence: dict[str, float | str] = field(default_factory=dict)
    between: tuple[float, float] | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the most that it may save; (0, 0) where nothing is promised."""
        if self.between is not None:
            return self.between
        if not self.gain > 0:
            return 0.0, 0.0
        off = hypot(RELATIVE * self.gain, ABSOLUTE)
        return max(0.0, self.gain - off), min(1.0, self.gain + off)

    def is_worth_it(self, surely: float = SURELY) -> bool:
        """It is told: it saves enough, and more than `surely` at least."""
        return self.gain >= WORTH and self.interval[0] > surely
