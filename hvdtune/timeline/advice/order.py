"""Do all ranks submit a step's tensors in one order? A tensor waits for the rank that submits it
last; if the orders differ, nearly every tensor waits for the end of some rank's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import Finding
from hvdtune.timeline.replay.changes import Change, each_step
from hvdtune.timeline.replay.program import Play, Program

#: Two submissions of a rank that are no further apart than this, ns, are at the same time: their
#: order is chance.
AT_ONCE = 100_000
#: The orders differ if another rank submits this share of all pairs of tensors the other way round
#: (in the median of the steps).
DIFFERENT = 0.05
#: If there are more tensors than this, a sample is compared.
MOST = 400


def orders_differ(case: Case) -> list[Finding]:
    """Ranks that submit the same tensors in different orders."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    shares = [discordance(one) for one in plays]
    if not shares or len(plays[0].programs) < 2:
        return []
    wide = np.array(shares)  # [steps, ranks]: how far each is from the first
    share = float(np.median(wide.max(axis=1)))
    if share < DIFFERENT:
        return []
    ranks = sorted(case.analysis.joint.views)
    apart = np.median(wide, axis=0)
    worst = ranks[int(apart.argmax())]
    example = _example(plays, int(apart.argmax()), case)
    return [
        Finding(
            "orders differ",
            f"Ranks submit the tensors of a step in different orders: {100 * share:.0f} % of all "
            f"pairs are the other way round on rank {worst} than on rank {ranks[0]}{example}. "
            "Each tensor waits for the rank that submits it last.",
            "Submit the tensors in one order on all ranks: go through sorted names, not through a "
            "set or a dict that each rank fills differently, and build the same layers in the same "
            "order.",
            case.gain(in_one_order()),
            {
                "pattern": "always",
                "discordant_share": share,
                "rank": float(worst),
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def _common(one: Play) -> np.ndarray:
    """Tensors that all ranks submit, by the first rank's order."""
    submit = np.stack([p.submit for p in one.programs])
    common = np.flatnonzero(np.isfinite(submit).all(axis=0))
    ordered: np.ndarray = common[np.argsort(submit[0, common], kind="stable")]
    return ordered


def discordance(one: Play) -> np.ndarray:
    """[ranks] share of the pairs of tensors that a rank submits the other way round than the first
    rank does; pairs that either submits at the same time count as alike."""
    tensors = _common(one)
    tensors = tensors[:: max(1, -(-len(tensors) // MOST))]
    if len(tensors) < 2:
        return np.zeros(len(one.programs))
    submit = np.stack([p.submit[tensors] for p in one.programs])
    if (np.maximum.accumulate(submit, axis=1) - submit <= AT_ONCE).all():
        return np.zeros(len(one.programs))  # nobody submits two tensors the other way round
    pair = np.triu_indices(len(tensors), 1)
    gaps = submit[:, pair[1]] - submit[:, pair[0]]
    other = (gaps < -AT_ONCE) & (gaps[0] > AT_ONCE)
    shares: np.ndarray = other.mean(axis=1)
    return shares


def _example(plays: Sequence[Play], rank: int, case: Case) -> str:
    """One tensor that is far from its place: ` (x is number 41 there, number 3 here)`."""
    one = plays[len(plays) // 2]
    tensors = _common(one)
    there = np.argsort(np.argsort(one.programs[rank].submit[tensors], kind="stable"))
    moved = np.abs(there - np.arange(len(tensors)))
    if not len(moved):
        return ""
    at = int(moved.argmax())
    names = case.analysis.joint.reference.recording.names
    number = int(one.name[tensors[at]])
    name = names[number].name if number < len(names) else f"tensor {number}"
    return f" ({name} is number {there[at] + 1} there, number {at + 1} here)"


def in_one_order() -> Change:
    """The change: every rank submits the first rank's tensors, in its order, at its own times of
    submission, and waits for them in that order."""

    def change(one: Play) -> Play:
        tensors = _common(one)
        own = tuple(_reordered(p, tensors) for p in one.programs)
        return replace(one, programs=own)

    return each_step(change)


def _reordered(program: Program, tensors: np.ndarray) -> Program:
    """The same submission times, `tensors` in this order."""
    own = tensors[np.argsort(program.submit[tensors], kind="stable")]
    submit, becomes = program.submit.copy(), np.arange(len(program.submit))
    submit[tensors] = program.submit[own]
    becomes[own] = tensors
    waits = tuple((at, becomes[needs]) for at, needs in program.waits)
    return replace(program, submit=submit, waits=waits)
