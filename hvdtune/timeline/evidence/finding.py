"""One cause of lost time: what is wrong, what to do, and the expected gain."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot

#: A finding is reported if its expected gain is at least this …
WORTH = 0.02
#: … and the lower end of its interval is above this.
SURELY = 0.005
#: The error of an expected gain in nine of ten cases if nothing else is known, as a share of the
#: gain and a share of the step (docs/report.md, "How right the expected gains are").
RELATIVE, ABSOLUTE = 0.25, 0.025


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    kind: a fixed name for programs. sentence: what is wrong, with rank, host, tensor or setting.
    action: what exactly to change. gain: expected share of the recorded steps' time saved, 0..1.
    evidence: the numbers behind it; names end in their unit. between: the least and the most that
    it may save, if known better than by `interval`.
    """

    kind: str
    sentence: str
    action: str
    gain: float
    evidence: dict[str, float | str] = field(default_factory=dict)
    between: tuple[float, float] | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the most that it may save; (0, 0) if no gain is promised."""
        if self.between is not None:
            return self.between
        if not self.gain > 0:
            return 0.0, 0.0
        off = hypot(RELATIVE * self.gain, ABSOLUTE)
        return max(0.0, self.gain - off), min(1.0, self.gain + off)

    def is_worth_it(self, surely: float = SURELY) -> bool:
        """Whether it is reported: it saves enough, and in any case more than `surely`."""
        return self.gain >= WORTH and self.interval[0] > surely
