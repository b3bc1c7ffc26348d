"""The gain of curing late ranks: their excess vanishes, or others take over a part of it.

A rank that has more data than others computes longer everywhere in the step; if the work is shared
evenly, a part of it moves to the others. If a rank stops in one place, for example to wait for its
input, its excess need not be done by anyone else. If the recording does not show which, the report
gives both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.expected import Expected, one_of, saved
from hvdtune.timeline.replay import changes
from hvdtune.timeline.replay.program import Play, Program

#: The relative error of these gains: the replay knows only this well when the others submit.
RELATIVE = 0.15
#: A rank computes longer everywhere if at every submission of the step its excess is proportional
#: to what the others have computed by then, within this share of the whole excess.
EVERYWHERE = 0.15
#: "Most" of an excess: of what is before the last submission, or is CPU time.
MOST = 0.5
#: An excess below this share of the others' computing is too small to locate in the step.
SEEN = 0.02


@dataclass(frozen=True)
class Cure:
    """`removed`: the gain if the late ranks do what the others do. `moved`: the gain if all ranks
    share the work evenly; None if that makes no difference or is unknown."""

    expected: Expected
    removed: Expected
    moved: Expected | None = None

    def says(self) -> str:
        """A sentence with both gains, to add to an action; "" if there is only one."""
        if self.moved is None:
            return ""
        return (
            f" If its share of the work is too large, equal shares save "
            f"{100 * self.moved.gain:.0f} %; if something else slows it down, removing that saves "
            f"{100 * self.removed.gain:.0f} %."
        )


def of_ranks(
    case: Case, late: list[int], chosen: np.ndarray, *, moves: bool = True, hidden: bool = False
) -> Cure:
    """The cure of the ranks `late` in the steps `chosen`, [S] bool. `moves`: their excess may be
    work that the others could take over. `hidden`: the others do not wait for the ranks themselves,
    but for communication that begins late."""
    positions = [case.position(rank) for rank in late]
    waited = _waited(case, late, chosen)
    if -1 in positions or len(positions) >= len(case.analysis.joint.views):
        return Cure(waited, waited)  # not all ranks recorded: that is all that is known
    bench = None if chosen is case.usual else case.bench(chosen)
    removed = saved(case, changes.as_fast_as_others(positions), bench, RELATIVE)
    if bench is not None and removed.gain < MOST * waited.gain:
        return Cure(waited, waited)  # they stop at the end of the step before, for example
    if removed.gain > waited.between[1] and not hidden:
        removed = waited  # the loss is no larger
    plays = [one for part in (bench or case.sample).stretches for one in part]
    where = place(plays, positions)
    if not moves or where == "one":
        return Cure(removed, removed)
    moved = saved(case, changes.shared_out(), bench, RELATIVE)
    if not 0 < moved.gain < removed.gain:
        return Cure(removed, removed)
    if where == "everywhere" or is_work(plays, positions, case.load.computing):
        likely = moved.gain
    else:
        likely = removed.gain
    return Cure(one_of(likely, (moved, removed)), removed, moved)


def _waited(case: Case, late: list[int], chosen: np.ndarray) -> Expected:
    """The time that the others waited for these ranks in the steps `chosen`."""
    table = case.analysis.lateness
    numbers = case.analysis.found_steps.number[chosen]
    own = table[table["rank"].isin(late) & table["step"].isin(numbers)]
    waited = min(1.0, float(own["delay_s"].sum() / case.durations.sum()))
    low, high = (1 - RELATIVE) * waited, (1 + RELATIVE) * waited
    return Expected(waited, (low, min(1.0, high)))


def place(plays: list[Play], late: list[int]) -> str:
    """Where in the step the ranks at these positions compute longer: "everywhere", in proportion to
    what the others compute; in "one" place; or "unseen", for instance if all is submitted at once.
    """
    excess, usual, totals = [], [], []
    for one in plays:
        for mine, theirs in _pairs(one, late):
            mine_at, theirs_at = (_submissions(p) for p in (mine, theirs))
            excess.append(mine_at - theirs_at)
            usual.append(theirs_at)
            totals.append((mine.compute - theirs.compute, theirs.compute))
    if not excess:
        return "unseen"
    grown, reached = np.mean(excess, axis=0), np.mean(usual, axis=0)
    total, compute = np.mean(totals, axis=0)
    if total <= SEEN * compute or grown[-1] <= 0 or reached[-1] <= 0:
        return "unseen"
    if grown[-1] < MOST * total:
        return "one"  # after the last submission
    if reached[-1] - reached[0] < changes.AT_ONCE * compute:
        return "unseen"
    apart = np.abs(grown / grown[-1] - reached / reached[-1]).max()
    return "everywhere" if apart <= EVERYWHERE else "one"


def _pairs(one: Play, late: list[int]) -> list[tuple[Program, Program]]:
    """Each late rank's program, with that of a typical other rank."""
    others = sorted(
        (p for at, p in enumerate(one.programs) if at not in late), key=lambda p: p.compute
    )
    if not others:
        return []
    typical = others[len(others) // 2]
    if not np.isfinite(typical.submit).any():
        return []
    return [
        (one.programs[at], typical)
        for at in late
        if (np.isfinite(one.programs[at].submit) == np.isfinite(typical.submit)).all()
    ]


def _submissions(program: Program) -> np.ndarray:
    """[11] own times, ns, at which each tenth of the tensors has been submitted."""
    times: np.ndarray = np.quantile(
        program.submit[np.isfinite(program.submit)], np.linspace(0, 1, 11)
    )
    return times


def is_work(plays: list[Play], late: list[int], computing: np.ndarray) -> bool:
    """Whether most of the excess is CPU time, not sleeping or reading. `computing`: [ranks, S] ns
    of CPU time (cpus.Load), NaN if unknown."""
    longer, busier = 0.0, 0.0
    for one in plays:
        ranks = len(one.programs)
        cpu = computing[:, one.step]
        if not np.isfinite(cpu).all():
            continue
        kept = one.kept if len(one.kept) == ranks else np.zeros(ranks)
        own = np.isin(np.arange(ranks), late)
        able = np.array([p.compute for p in one.programs]) - kept
        longer += float(able[own].mean() - able[~own].mean())
        busier += float(cpu[own].mean() - cpu[~own].mean())
    return longer > 0 and busier >= MOST * longer
