"""A log as numbers: its runs, their samples, and the comparison that decided.

cost    the quantity that is compared, lower is better: the step time in ms; Horovod's logs have
        none, so there it is the time to allreduce a megabyte, 1000 / score, in ms
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdtune.autotune.report import log
from hvdtune.autotune.statistics import inference

COMPARING = ("confirm", "verify")
SETTINGS = (*log.HOROVOD_COLUMNS[:-1], *(log.column(knob) for knob in log.OTHER_KNOBS))
_PAIR = re.compile(r"pair(s?) (\d+)")


@dataclass(frozen=True)
class Sample:
    """One row. `settings` by column; `error` is that of `cost` (0: unknown)."""

    number: int
    phase: str
    settings: dict[str, float]
    cost: float | None
    error: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    decision: str = ""


@dataclass
class Run:
    """One tuning: its samples in order, and the last row if tuning reached its end."""

    samples: list[Sample] = field(default_factory=list)
    final: Sample | None = None
    adopted: bool | None = None
    of_horovod: bool = False

    @property
    def start(self) -> dict[str, float]:
        """The settings the run began with."""
        return self.samples[0].settings if self.samples else {}

    @property
    def measured(self) -> list[Sample]:
        """Samples that count: all except the warm-up and those without a time."""
        return [one for one in self.samples if one.phase != "warmup" and one.cost is not None]

    def is_candidate(self, sample: Sample) -> bool:
        """Whether a sample has other settings than those the run began with."""
        return sample.settings != self.start

    def is_reference(self, sample: Sample) -> bool:
        """Whether a sample has the settings with which candidates were compared at the time.

        They change when a candidate is shown to be far faster.
        """
        if sample.phase in COMPARING:
            return any(sample is one for pairs in self.comparisons() for _, one in pairs)
        return sample.decision == "incumbent" or not self.is_candidate(sample)

    def varied(self) -> list[str]:
        """The columns of settings that take more than one value."""
        return [
            name
            for name in self.start
            if len({one.settings[name] for one in self.samples if name in one.settings}) > 1
        ]

    def comparisons(self) -> list[list[tuple[Sample, Sample]]]:
        """All comparisons in order, each as its pairs (candidate, incumbent) as last measured.

        Two rows hold several pairs, those up to a look. Older logs have two rows per pair, and also
        hold a disturbed pair twice.
        """
        found: list[dict[int, list[Sample]]] = []
        number, is_behind = 0, False
        for one in self.samples:
            match = _PAIR.search(one.decision)
            if one.phase not in COMPARING or not match:
                is_behind = True
                continue
            before, number = number, int(match[2])
            if number < before or not found or (match[1] and number == 1 and is_behind):
                found.append({})
            is_behind = False
            found[-1].setdefault(number, []).append(one)
        return [
            [_in_order(number, rows) for number, rows in pairs.items() if _is_whole(rows)]
            for pairs in found
        ]

    def pairs(self) -> list[tuple[Sample, Sample]]:
        """The pairs (candidate, incumbent) of the comparison that decided.

        That is the one that led to the adopted settings, or else the last one.
        """
        comparisons = self.comparisons()
        if self.adopted and self.final is not None:
            for pairs in reversed(comparisons):
                if pairs and pairs[0][0].settings == self.final.settings:
                    return pairs
        return comparisons[-1] if comparisons else []


def read(path: str | Path) -> list[Run]:
    """The runs in a log of hvdtune's or Horovod's, in order.

    Raises ValueError naming the file and what is wrong with it, OSError if it cannot be opened.
    """
    rows = log.read(path)
    # Blank in every row: this job does not have the setting (NCCL's without NCCL).
    known = [name for name in SETTINGS if any(row.get(name) for row in rows)]
    runs = [Run()]
    for at, row in enumerate(rows, start=1):
        try:
            sample = _sample(row, at, known)
        except ValueError as error:
            raise ValueError(f"{path}, row {at}: {error}") from None
        if sample.phase == "final":
            runs[-1].final = sample
            runs[-1].adopted = {"1": True, "0": False}.get(row.get("accepted", ""))
            runs.append(Run())
        else:
            runs[-1].samples.append(sample)
    runs = [run for run in runs if run.samples or run.final is not None]
    for run in runs:
        if all("phase" not in row for row in rows):
            _finish_horovods(run)
    return runs


def gains(run: Run) -> list[tuple[Sample, float, float]]:
    """Every measured sample with its log cost relative to the start's around it, and the error.

    The start's level is taken at the sample's position, so that drift cancels: samples of a round,
    whose visits alternated, have the incumbent's position. Horovod never measures the start again,
    so its first sample is the level throughout.
    """
    measured = run.measured
    known = [one for one in measured if not run.is_candidate(one)] or measured[:1]
    place = _places(measured)
    places = [place[id(one)] for one in known]
    logs = [math.log(_cost(one)) for one in known]
    errors = [relative_error(one) for one in known]
    found = []
    for one in measured:
        level = inference.level(place[id(one)], places, logs, errors)
        error = math.hypot(relative_error(one), level.error)
        found.append((one, math.log(_cost(one)) - level.value, error))
    return found


def _places(measured: Sequence[Sample]) -> dict[int, int]:
    """The position of each sample, by identity: its number, or its round's incumbent's."""
    searched = [one for one in measured if one.phase == "search"]
    in_rounds = bool(searched) and searched[0].decision == "incumbent"
    found, incumbent = {}, 0
    for one in measured:
        incumbent = one.number if one.decision == "incumbent" else incumbent
        found[id(one)] = incumbent if in_rounds and one.phase == "search" else one.number
    return found


def _finish_horovods(run: Run) -> None:
    """Horovod repeats its best row at the end, unless training ended before that."""
    run.of_horovod = True
    last = run.samples[-1]
    best = min(run.measured, key=_cost, default=None)
    is_repeated = len(run.samples) > 1 and any(
        one.settings == last.settings and one.cost == last.cost for one in run.samples[:-1]
    )
    if is_repeated and best is not None and last.cost == best.cost:
        run.final = run.samples.pop()
        run.adopted = run.final.settings != run.start


def _sample(row: Mapping[str, str], at: int, known: Sequence[str]) -> Sample:
    score, time = _number(row, "score"), _number(row, "step_time_ms")
    cost = time if "step_time_ms" in row else (1e3 / score if score else None)
    error = _number(row, "step_time_stderr_ms") or 0.0
    return Sample(
        number=int(_number(row, "sample") or at),
        phase=row.get("phase", "search"),
        settings={name: _number(row, name) or 0.0 for name in known},
        cost=cost if cost and cost > 0 else None,
        error=error,
        steps=int(_number(row, "steps") or 0),
        seconds=_number(row, "seconds") or 0.0,
        decision=row.get("decision", ""),
    )


def _is_whole(rows: list[Sample]) -> bool:
    return len(rows) % 2 == 0 and all(one.cost is not None for one in rows[-2:])


def _in_order(number: int, rows: list[Sample]) -> tuple[Sample, Sample]:
    # The candidate comes first in every other pair; a disturbed pair appears twice.
    first, second = rows[-2:]
    return (first, second) if number % 2 else (second, first)


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is not a number") from None
    # A time that is not a finite number is unknown.
    return value if math.isfinite(value) else None


def _cost(sample: Sample) -> float:
    assert sample.cost is not None
    return sample.cost


def relative_error(sample: Sample) -> float:
    """The relative error of a sample's cost, never below the precision of clocks."""
    return max(5e-4, sample.error / _cost(sample))


def total(run: Run, of: str) -> float:
    """The sum of `steps` or `seconds` over a run."""
    numbers: Iterable[float] = (getattr(one, of) for one in run.samples)
    return sum(numbers)
