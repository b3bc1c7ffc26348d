"""Everything that a report says about one recording, as data. Formulas: docs/metrics.md.

`analyse` is the one call that a report, `hvdtune diff` or a notebook needs. All times are seconds
(float64) on rank 0's clock, counted from `Analysis.origin_ns`, unless a column's name ends in
another unit. `step` is the number of an optimizer's step if the recording has marks of steps, else
the steps are counted from 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hvdtune.timeline.analysis import sizes

if TYPE_CHECKING:
    import pandas as pd

    from hvdtune.timeline.record.layout import Recording
    from hvdtune.timeline.structure.joint import Joint
    from hvdtune.timeline.structure.owners import Family
    from hvdtune.timeline.structure.step_starts import Once
    from hvdtune.timeline.structure.steps import Steps

#: The parts of a step, in the order in which a picture stacks them. They sum to `step_s` exactly.
#: All but the first are time in which the framework's thread was blocked; their sum is `exposed_s`.
PARTS = (
    "compute_s",
    "skew_wait_s",
    "negotiation_s",
    "cycle_wait_s",
    "queue_s",
    "copy_in_s",
    "reduce_s",
    "copy_out_s",
    "peer_wait_s",
    "other_s",
)
EXPOSED_PARTS = PARTS[1:]


@dataclass(frozen=True)
class Overlap:
    """How much communication is hidden by compute, and how short a step could be. Means over the
    steps, seconds. NaN is unknown: no step was found, or `shows_waits` is false."""

    overlap_share: float  # of the time in which operations run, the framework computes
    exposed_share: float  # share of the step in which the framework is blocked in the engine
    step_s: float
    ideal_free_communication_s: float
    ideal_no_skew_s: float
    shows_waits: bool = True  # the recording shows when the program waits (waits.shown)
    exposed_at_most: float = float("nan")  # exposed_share, or the most that it may be


@dataclass(frozen=True)
class Fusion:
    """How full batches are. Medians and shares over the batches of the steps."""

    batches_per_step: float
    tensors_per_batch: float
    bytes_per_batch: float
    fill: float  # median of bytes / threshold in force; NaN if fusion is off
    threshold_bytes: float  # in force at the end; NaN if not recorded
    cycle_time_s: float  # the same
    tail_s: float  # median over steps: from the last submission to the end of the last batch
    reasons: dict[str, int] = field(default_factory=dict)  # why batches closed → batches


@dataclass(frozen=True)
class Quality:
    """How far the numbers can be trusted."""

    ranks_recorded: int
    ranks_missing: tuple[int, ...]
    incomplete_ranks: tuple[int, ...]  # their recordings have no end
    cut_off: dict[str, str]  # rank → when and why its recording stopped early
    dropped: dict[str, int]  # stream → records lost, over all ranks
    clock_bound_s: float
    skew_below_clock_bound: bool  # the typical lateness is less than the clocks' uncertainty
    steps_from: str  # "marks", "names", "sizes" or "none": how steps were found
    steps_ignored: int  # found, but not complete on all ranks
    records: int
    recording_overhead_share: float  # estimate: cost of taking these records / their time
    problems: tuple[str, ...] = ()


@dataclass
class Analysis:
    """The answers to all questions. Columns of the frames: docs/metrics.md."""

    recording: Recording
    origin_ns: int  # seconds of the frames count from here
    steps: pd.DataFrame  # rank, step, begin_s, end_s, duration_s
    waterfall: pd.DataFrame  # rank, step, step_s, PARTS, exposed_s, communication_s, overlapped_s
    overlap: Overlap
    lateness: pd.DataFrame  # rank, step, lateness_s, caused_s, delay_s, last
    stragglers: pd.DataFrame  # rank, host, kind, steps_last_share, caused_s, from_step, to_step, …
    batches: pd.DataFrame  # serial, step, op, tensors, bytes, fill, reason, delay_s, begin_s, …
    fusion: Fusion
    stalls: pd.DataFrame  # time_s, step, rank, seconds, text, ended
    tuning: pd.DataFrame  # time_s, step, kind, epoch, text
    settings: dict[str, Any]  # variable → value in force at the end
    quality: Quality
    joint: Joint  # what the answers were made from; verdict.findings replays it
    found_steps: Steps  # without those of `starts`
    phases: pd.DataFrame  # rank, step, s in each phase of the own time; sum to compute_s
    starts: tuple[Once, ...] = ()  # steps that took long once
    owners: tuple[Family, ...] = ()  # the operations by owner

    # Computed on demand: most findings do without these.

    @cached_property
    def sizes(self) -> pd.DataFrame:
        """Columns: op, bytes_from, count, p50_s, p95_s, p99_s, algbw_gbps, busbw_gbps, …"""
        ranks = self.recording.ranks.values()
        peak = next((r.identity.peak_gbps for r in ranks if r.identity.peak_gbps), None)
        return sizes.sizes(self.joint, peak)

    @cached_property
    def tensors(self) -> pd.DataFrame:
        """Columns: name, op, dtype, bytes, count, wait_s, latency_s, last_share, alone_share."""
        return sizes.tensors(self.joint, self.found_steps)
