"""How the samples of a tuning were used, from its log.

    python benchmarks/autotune/samples.py log.csv [more.csv ...]

Each run of each log is a table: the kinds of samples, how many there were, their counted steps, and
the seconds from each change of settings on, settling and pauses included.

    warm-up              the settings of the start, discarded
    baseline             the settings of the start, before anything else is tried
    incumbent repeated   the settings that candidates were compared with at the time, again
    given up early       candidates that were so bad that they were not measured to the end
    without effect       candidates that change one setting only, and are as fast as the start
    no better            other candidates of the search that are not faster beyond the noise
    faster               candidates of the search that are
    measured again       candidates that have been measured before
    pairs                of candidates and incumbents, that decide
    pairs again          those of disturbed pairs, which do not count

"As fast" and "the noise" mean SURE standard errors of the candidate's difference from the start.
`behind the best` is the number of the search's samples after the first one of the candidate that
was finally compared (or, without a comparison, of the quickest one). `the start was left after` is
the number of counted steps before the first candidate was adopted. `the search's steps` says how
much longer these were, including all candidates, than those of the settings in force that took
turns with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtune.autotune.report import runs
from hvdtune.autotune.report.runs import Run, Sample

SURE = 2.0
KINDS = (
    "warm-up", "baseline", "incumbent repeated", "given up early", "without effect", "no better",
    "faster", "measured again", "pairs", "pairs again",
)  # fmt: skip


@dataclass
class Spent:
    """The cost of the samples of a kind."""

    samples: int = 0
    steps: int = 0
    seconds: float = 0.0

    def add(self, one: Sample) -> None:
        """Add a sample."""
        self.samples += 1
        self.steps += one.steps
        self.seconds += one.seconds


def spent(run: Run) -> dict[str, Spent]:
    """The cost of each of KINDS."""
    found = {kind: Spent() for kind in KINDS}
    for one, kind in zip(run.samples, kinds(run), strict=True):
        found[kind].add(one)
    return found


def kinds(run: Run) -> list[str]:
    """For each sample one of KINDS."""
    gains = {id(one): (cost, error) for one, cost, error in runs.gains(run)}
    paired = {id(one) for pairs in run.comparisons() for pair in pairs for one in pair}
    return [_kind(run, one, gains, paired) for one in run.samples]


def _kind(run: Run, one: Sample, gains: Mapping[int, tuple[float, float]], paired: set[int]) -> str:
    if one.phase == "warmup":
        return "warm-up"
    if one.phase == "baseline":
        return "baseline"
    if one.decision.startswith("abandoned"):
        return "given up early"
    if one.phase in runs.COMPARING:
        return "pairs" if id(one) in paired else "pairs again"
    if one.decision == "measured again":
        return "measured again"
    if run.is_reference(one):
        return "incumbent repeated"
    if id(one) not in gains:
        return "given up early"
    cost, error = gains[id(one)]
    if cost < -SURE * error:
        return "faster"
    changed = sum(one.settings[name] != value for name, value in run.start.items())
    return "without effect" if changed == 1 and cost < SURE * error else "no better"


def behind_the_best(run: Run) -> int:
    """Samples of the search after the first one of the candidate that was finally compared."""
    search = [one for one in run.samples if one.phase == "search"]
    pairs = run.pairs()
    if pairs:
        best = pairs[0][0].settings
    else:
        measured = [one for one in search if one.cost is not None]
        best = min(measured, key=lambda one: one.cost or 0.0).settings if measured else {}
    first = next((at for at, one in enumerate(search) if one.settings == best), len(search) - 1)
    return max(0, len(search) - 1 - first)


def left_the_start_after(run: Run) -> int | None:
    """Counted steps before the first candidate was adopted; None: none was."""
    steps = 0
    for one in run.samples:
        if one.decision == "incumbent" and one.settings != run.start:
            return steps
        steps += one.steps
    return steps if run.adopted else None


def cost_of_search(run: Run) -> float | None:
    """The share by which the search's steps were longer than the incumbent's in the same turns.

    None: there were none.
    """
    extra = total = 0.0
    usual = None
    for one in run.samples:
        if one.phase != "search" or one.cost is None:
            continue
        if one.decision == "incumbent":
            usual = one.cost
        elif usual is not None:
            extra += one.steps * (one.cost / usual - 1)
        total += one.steps
    return extra / total if total else None


def table(run: Run) -> list[str]:
    """The run in lines."""
    found = spent(run)
    every = Spent()
    for one in run.samples:
        every.add(one)
    width = max(map(len, KINDS))
    lines = [f"{'':{width}}  samples    steps       s  of the time"]
    for kind, own in [*found.items(), ("all", every)]:
        if own.samples:
            share = 100 * own.seconds / every.seconds if every.seconds else 0.0
            lines.append(
                f"{kind:{width}}  {own.samples:7d}  {own.steps:7d}  {own.seconds:6.1f}  "
                f"{share:9.0f} %"
            )
    candidates = len({tuple(one.settings.values()) for one in run.samples if run.is_candidate(one)})
    lines.append(f"{candidates} candidates; {behind_the_best(run)} samples behind the best")
    left, search = left_the_start_after(run), cost_of_search(run)
    if left is not None:
        lines.append(f"the start was left after {left} steps")
    if search is not None:
        lines.append(f"the search's steps: {100 * search:+.1f} %")
    return lines


def main() -> int:
    """Print the tables; 1 if a file is no log of hvdtune's."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="of --autotune-log-file")
    for path in made.parse_args().logs:
        try:
            found = runs.read(path)
        except (OSError, ValueError) as error:
            print(f"samples.py: {error}", file=sys.stderr)
            return 1
        if any(run.of_horovod for run in found):
            print(f"samples.py: {path} is Horovod's: it does not say what a sample is for",
                  file=sys.stderr)  # fmt: skip
            return 1
        for number, run in enumerate(found, start=1):
            print(f"{path}" + (f", run {number} of {len(found)}" if len(found) > 1 else ""))
            print(*table(run), "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
