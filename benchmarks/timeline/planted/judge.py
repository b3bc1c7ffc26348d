"""Compares verdicts with the truth (cause, rank, gain) and shows the results as tables."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planted.program import BUSY_HOST, HARMLESS, Program

if TYPE_CHECKING:
    from hvdtune.timeline.evidence.finding import Finding

#: Shares of the recordings that must be right.
CAUSES, GAINS, HEALTHY = 0.95, 0.90, 0.95
NOTHING = "nothing wrong"


def named(finding: Finding) -> frozenset[int]:
    """The ranks that a finding blames; a rank of -1 is none."""
    several = finding.evidence.get("ranks", "")
    if isinstance(several, str):
        ranks = {int(word) for word in several.replace(",", " ").split() if word.isdigit()}
    else:
        ranks = set()  # a number of ranks
    one = finding.evidence.get("rank", -1)
    if not ranks and float(one) >= 0:
        ranks = {int(float(one))}
    return frozenset(ranks)


def blames(finding: Finding, program: Program) -> bool:
    """Whether it names the ranks at fault and no others; all ranks, if alike, count as none."""
    if program.culprits is None:
        return True
    ranks = named(finding)
    if not program.culprits:
        return len(ranks) in (0, program.ranks)
    return ranks == program.culprits


def invented(finding: Finding, program: Program, busy_host: bool) -> bool:
    """Whether it names a rank or a problem, although the job is healthy."""
    allowed = HARMLESS | program.allowed | (BUSY_HOST if busy_host else frozenset())
    return finding.kind not in allowed or len(named(finding)) not in (0, program.ranks)


@dataclass
class Row:
    """One program: mean step times of its runs in seconds, and the findings of each recording."""

    program: Program
    busy_host: bool = False
    faulty_s: list[float] = field(default_factory=list)
    cured_s: list[float] = field(default_factory=list)
    found: list[Sequence[Finding]] = field(default_factory=list)

    @property
    def measured(self) -> float:
        """The gain of the cure, as a share of the faulty job's time."""
        gains = self._gains()
        return statistics.fmean(gains) if gains else 0.0

    @property
    def error(self) -> float:
        """The standard error of that; 0 if there was only one round."""
        gains = self._gains()
        return statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0

    def _gains(self) -> list[float]:
        if self.program.healthy:
            return []
        return [1 - good / bad for bad, good in zip(self.faulty_s, self.cured_s, strict=True)]

    def told(self, findings: Sequence[Finding]) -> str:
        """The kind that a recording's verdict names, for the confusion matrix."""
        if not self.program.healthy:
            return findings[0].kind
        wrong = [one for one in findings if invented(one, self.program, self.busy_host)]
        return wrong[0].kind if wrong else NOTHING

    @property
    def causes_right(self) -> int:
        """Recordings whose first finding is the cause; of healthy jobs: that invent nothing."""
        if self.program.healthy:
            return sum(self.told(one) == NOTHING for one in self.found)
        return sum(one[0].kind in self.program.kinds for one in self.found)

    @property
    def right(self) -> int:
        """… and that name the right ranks."""
        if self.program.healthy:
            return self.causes_right
        return sum(
            one[0].kind in self.program.kinds and blames(one[0], self.program) for one in self.found
        )

    @property
    def inside(self) -> int:
        """Recordings whose interval for this cause contains the measured gain, give or take its
        standard error. A cause that is not reported promises nothing."""
        return sum(
            self._holds(one.interval)
            for findings in self.found
            if (one := self.about_the_cause(findings)) is not None
        )

    def about_the_cause(self, findings: Sequence[Finding]) -> Finding | None:
        """The best finding of a recording that names the cause."""
        return next((one for one in findings if one.kind in self.program.kinds), None)

    def _holds(self, interval: tuple[float, float]) -> bool:
        least, most = interval
        return least - self.error <= self.measured <= most + self.error

    @property
    def promised(self) -> float | None:
        """The median of the promised gains; None if the cause was never reported."""
        about = [self.about_the_cause(one) for one in self.found]
        gains = [one.gain for one in about if one is not None]
        return statistics.median(gains) if gains else None


def reached(rows: Iterable[Row]) -> tuple[list[str], bool]:
    """Sentences about the goals, and whether all are reached."""
    rows = list(rows)
    faulty = [row for row in rows if not row.program.healthy]
    healthy = [row for row in rows if row.program.healthy]
    goals = [
        ("cause and rank right first", [(row.right, len(row.found)) for row in faulty], CAUSES),
        ("gain inside the interval", [(row.inside, len(row.found)) for row in faulty], GAINS),
        ("healthy, and reported so", [(row.right, len(row.found)) for row in healthy], HEALTHY),
    ]
    sentences, good = [], True
    for text, counts, goal in goals:
        right, of = sum(one for one, _ in counts), sum(one for _, one in counts)
        if of:
            good = good and right >= goal * of
            share = (
                f"{right} of {of} recordings ({100 * right / of:.1f} %, goal {100 * goal:.0f} %)"
            )
            sentences.append(f"{text}: {share}")
    return sentences, good


HEAD = (
    "program",
    "what",
    "ranks",
    "faulty",
    "cured",
    "gain",
    "promised",
    "right",
    "inside",
    "first finding",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, under HEAD."""
    program, of = row.program, len(row.found)
    first = ", ".join(kind for kind, _ in Counter(map(row.told, row.found)).most_common())
    what = {"numpy": "NumPy", "torch": "PyTorch"}[program.framework]
    ranks = f"{program.ranks} on {program.hosts} hosts" if program.hosts > 1 else str(program.ranks)
    faulty = f"{1e3 * statistics.fmean(row.faulty_s):.1f} ms" if row.faulty_s else "–"
    if program.healthy:
        return program.name, what, ranks, faulty, "–", "–", "–", f"{row.right}/{of}", "–", first
    return (
        program.name, what, ranks, faulty,
        f"{1e3 * statistics.fmean(row.cured_s):.1f} ms",
        f"{100 * row.measured:.1f}{f' ± {100 * row.error:.1f}' if of > 1 else ''} %",
        "–" if row.promised is None else f"{100 * row.promised:.1f} %",
        f"{row.right}/{of}", f"{row.inside}/{of}", first,
    )  # fmt: skip


WIDTHS = (34, 8, 13, 9, 9, 14, 9, 6, 7, 0)


def line(texts: Iterable[str]) -> str:
    """A row as text in columns."""
    return " ".join(f"{text:{width}}" for text, width in zip(texts, WIDTHS, strict=True)).rstrip()


def markdown(rows: Iterable[Row]) -> str:
    """The table, as docs/report.md has it."""
    lines = [HEAD, ("---",) * len(HEAD), *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def confusion(rows: Iterable[Row]) -> Counter[tuple[str, str]]:
    """The number of recordings by (fault, first finding)."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for findings in row.found:
            told = row.told(findings)
            truth = NOTHING if row.program.healthy else row.program.kinds[0]
            if told in row.program.kinds:
                told = truth
            counts[truth, told] += 1
    return counts


def matrix(counts: Counter[tuple[str, str]]) -> str:
    """The confusion matrix: a line for each truth, a column for each reported kind."""
    kinds = sorted({kind for pair in counts for kind in pair})
    numbers = {kind: at for at, kind in enumerate(kinds, 1)}
    lines = ["fault of the job (lines), first finding (columns)"]
    lines.append(" " * 36 + "".join(f"{numbers[kind]:4}" for kind in kinds))
    for truth in kinds:
        row = "".join(f"{counts[truth, told] or '.':>4}" for told in kinds)
        if any(pair[0] == truth for pair in counts):
            lines.append(f"{numbers[truth]:3} {truth:32}{row}")
        else:
            lines.append(f"{numbers[truth]:3} {truth}")
    return "\n".join(lines)
