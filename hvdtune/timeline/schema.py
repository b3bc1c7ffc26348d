"""What is in the JSON documents of `hvdtune report` (Report, HorovodReport) and `hvdtune diff`
(Comparison), key by key.

A name ends in its unit: `_s` seconds, `_ms` and `_us` thousandths and millionths of them, `_gbps`
10⁹ bytes a second, `_share` a part of 1; `bytes` are bytes. Unless something else is said, points
in time count from the start of the recording, steps have the program's numbers, and None means
unknown. docs/metrics.md has the formulas.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class Finding(TypedDict):
    """One cause of lost time. The verdict is the first of them."""

    kind: str  # a fixed name for programs
    sentence: str  # what is wrong
    action: str  # what to do; "" if there is nothing to do
    gain: float  # share of the recorded steps' time that the action is expected to save
    interval: list[float]  # the least and the most that it may save
    evidence: dict[str, float | str | None]  # the numbers behind it; the keys depend on the kind


# ---- hvdtune report ------------------------------------------------------------------------------


class Job(TypedDict):
    """The recorded job: its ranks, hosts, versions and start."""

    id: str
    ranks: int  # of the job
    recorded: list[int]  # ranks whose recordings are here
    hosts: list[str]
    version: str  # of hvdtune
    framework: str  # the faces in use: "torch 2.13.0", "keras 3.10.0, jax 0.7.1"; "" if unknown
    cpus: int | None  # that the ranks of the first host may use together
    started_wall_us: int  # since the epoch
    complete: bool  # all recordings are complete


class Share(TypedDict):
    """How much of the mean step one cause takes."""

    kind: str
    title: str
    seconds: float
    share: float
    finding: int | None  # the index of its finding; None if it has none


class Accounting(TypedDict):
    """The mean step by cause."""

    step_s: float
    sentence: str
    shares: list[Share]  # they sum to the step


class StartStep(TypedDict):
    """A step that took long because something started."""

    step: int
    begin_s: float
    seconds: float
    last_rank: int  # the rank that was last in it; -1: unknown
    late_s: float  # by how much
    reason: str  # "first steps" or "new tensors"


class Start(TypedDict):
    """One-time starts. No other number contains them."""

    seconds: float
    sentence: str
    steps: list[StartStep]


class StepCount(TypedDict):
    """The only key if there are no steps."""

    count: int


class Steps(StepCount, total=False):
    """How long steps take, each as the median over ranks. Without steps only `count`."""

    first: int
    last: int
    median_s: float
    p5_s: float
    p95_s: float
    mean_s: float
    wall_s: float  # from the start of the first to the end of the last, without one-time starts
    per_second: float | None


class Part(TypedDict):
    """A part of the step."""

    name: str  # of analysis.answers.PARTS
    title: str
    colour: str  # a name of hvdtune/pages/page.css


class Bar(TypedDict):
    """A step in parts."""

    step_s: float
    exposed_s: float  # the framework is blocked
    communication_s: float  # operations run
    overlapped_s: float  # part of communication_s in which the framework computes
    parts_s: dict[str, float]  # part → seconds; they sum to the step


class RankBar(Bar):
    """One rank's typical step."""

    rank: int


class Waterfall(TypedDict):
    """Where a step goes. Typical steps are the middle half by duration; None without steps, or if
    the recording does not show when the program waits."""

    parts: list[Part]
    typical: Bar | None
    mean: Bar | None  # of all steps
    ranks: list[RankBar]
    left_out: int  # ranks not listed
    steps: int  # typical ones


class Phase(TypedDict):
    """A phase of computing."""

    name: str
    title: str
    differs: bool  # ranks do not spend the same time in it


class RankPhases(TypedDict):
    """The mean step of one rank."""

    rank: int
    parts_s: dict[str, float]  # phase → seconds


class Phases(TypedDict):
    """What computing consists of; the whole step if waits are not shown."""

    parts: list[Phase]
    mean: dict[str, float]  # phase → seconds of the mean step
    ranks: list[RankPhases]
    left_out: int  # ranks not listed


class Overlap(TypedDict):
    """How much communication is hidden, and how short a step could be; None without steps. If the
    recording does not show when the program waits, only the last three are known."""

    overlap_share: float | None  # share of communication that is hidden
    exposed_share: float | None  # share of the step in which the framework is blocked
    ideal_free_communication_s: float | None
    ideal_no_skew_s: float | None
    step_s: float | None  # the mean
    shows_waits: bool  # whether the recording shows when the program waits
    exposed_at_most: float | None  # exposed_share, or the most that it may be


class Lateness(TypedDict):
    """How late each rank was in each step."""

    ranks: list[list[int]]  # the first and last rank of each row
    steps: list[list[int]]  # the first and last step of each column
    late_ms: list[list[float]]  # by row and column
    most_ms: float  # nearly all cells are below this
    typical_ms: dict[str, float]  # rank → median


class Straggler(TypedDict):
    """A rank that held up a step. If the recording does not show when the program waits, caused_s
    and delay_s are the most that they may be."""

    rank: int
    host: str
    kind: str  # "persistent", "transient", "recurring" or ""
    steps_last_share: float  # of the steps that it held up
    caused_s: float  # what it cost all others together
    delay_s: float  # how much shorter the job would be without it
    typical_late_s: float  # the median in the steps of the interval that it held up
    from_step: int  # the interval; -1: no step
    to_step: int
    interval_share: float  # of the steps of the interval that it held up
    chance: float  # probability that equal ranks cause as much
    period: int  # steps from pause to pause; 0: none


class RankCpus(TypedDict):
    """A rank's threads and the CPUs that it may use; means over the steps."""

    rank: int
    host: str
    cpus_used: float | None  # by its threads
    threads_waiting: float | None  # for a CPU
    threads_computing: float | None
    threads_set: float | None  # for computing
    involuntary_switches_per_s: float | None
    voluntary_switches_per_s: float | None
    pages_from_disk_per_s: float | None
    page_faults_per_s: float | None
    swapped_bytes: float | None
    held_back_share: float | None  # share of the time in which a limit holds it back
    cpus_busy: float | None  # of those that it may use
    cpus_stolen: float | None
    clock_hz: float | None
    cpu_pressure_share: float | None
    memory_pressure_share: float | None
    cpus_of_others: float | None  # used by other processes
    allowed_cpus: str  # "0-3,8"; "" if unknown


Lane = Literal["compute", "blocked", "communication"]
#: [begin, end] in ms since the step began; single batches also have a description.
Span = list[float | str]


class Lanes(TypedDict):
    """What one rank did in a step."""

    rank: int
    compute: list[Span]
    blocked: list[Span]
    communication: list[Span]


class Strip(TypedDict):
    """One step drawn to scale."""

    kind: str  # "typical" or "bad"
    step: int
    duration_s: float  # the median of the ranks
    length_ms: float  # from the first rank's start to the last one's end
    left_out: int  # ranks not drawn
    ranks: list[Lanes]


class Fusion(TypedDict):
    """How tensors were fused; medians over the batches of the steps."""

    batches_per_step: float | None  # the mean
    tensors_per_batch: float | None
    bytes_per_batch: float | None
    fill: float | None  # share of the threshold; None also if fusion is off
    threshold_bytes: float | None  # in force at the end
    cycle_time_s: float | None  # the same
    tail_s: float | None  # from the last submission of a step to the end of its last batch
    reasons: dict[str, int]  # why batches closed → batches
    batches: int  # in the whole recording
    bins: list[str]  # numbers of tensors: "1", "2", "3-4" …
    histogram: dict[str, list[int]]  # reason → batches in each bin


class Size(TypedDict):
    """Batches of one operation, number of ranks and size."""

    op: str
    ranks: int  # 0: unknown
    bytes_from: int  # up to twice as many
    count: int
    bytes: float  # the median
    p50_s: float
    p95_s: float
    p99_s: float
    algbw_gbps: float
    total_s: float
    busbw_gbps: float | None  # None if ranks are unknown or too few, or no data moves
    peak_share: float | None  # of the measured peak, else of the best size


class Point(TypedDict):
    """One batch."""

    op: str
    bytes: int  # of the whole result if it is an allgather
    busbw_gbps: float


class Roof(TypedDict):
    """The flat part of the roofline."""

    peak_gbps: float | None
    measured: bool  # otherwise the peak is the best batch's


class Tensor(TypedDict):
    """What one tensor costs."""

    name: str
    op: str
    dtype: str
    process_set: int
    bytes: int
    count: int
    latency_s: float  # the median from submission to result
    wait_s: float  # part of latency_s: until its batch begins
    last_share: float  # share of the steps in which it is submitted last
    alone_share: float  # share of its batches that contain no other tensor


class Owner(TypedDict):
    """Operations that one call of the program repeats; the numbers are per step."""

    call: str
    name: str
    process_set: int
    count: float
    bytes: float
    steps: float  # share of the steps that contain it
    blocked_s: float | None  # per participating rank; None if waits are not shown
    late_s: float | None  # part of blocked_s: waiting for late ranks
    alone: bool  # the program waits for each before it submits anything else
    phase: str  # when it runs; "" if there are no gradients
    site: str  # the line that calls it, if it has no name: a sample


class Stall(TypedDict):
    """A long wait for one rank."""

    time_s: float
    step: int  # -1: outside of whole steps
    rank: int  # -1: unknown
    seconds: float
    text: str  # what the stall check reported
    ended: bool  # the process sets that it is about went on afterwards


class TuningMark(TypedDict):
    """An action of the tuner, or a change of settings."""

    time_s: float
    step: int  # -1: outside of whole steps
    kind: str  # "autotune" or "settings"
    epoch: int  # of settings; else -1
    text: str


class Setting(TypedDict):
    """A setting; its values are written as its variable's."""

    name: str  # of its variable
    value: object  # in force at the end
    at_start: object
    default: object
    moved: bool  # it changed while the job ran
    changed: bool  # it is not the default


class Series(TypedDict):
    """The step time over the run: for every few steps the ranks' median, lowest and highest."""

    step: list[int]
    median_ms: list[float]
    low_ms: list[float]
    high_ms: list[float]


class Event(TypedDict):
    """An event in a step."""

    kind: str  # "tuner", "stall" or "straggler"
    step: int
    text: str
    at_ms: float  # the median_ms of the series at that step


class Quality(TypedDict):
    """How far the numbers can be trusted."""

    ranks_recorded: int
    ranks_missing: list[int]
    incomplete_ranks: list[int]  # their recordings have no end
    cut_off: dict[str, str]  # rank → when and why its recording stopped early
    dropped: dict[str, int]  # stream → records lost
    clock_bound_s: float  # the ranks' clocks agree within this time
    skew_below_clock_bound: bool  # typical lateness is less than clock_bound_s
    steps_from: str  # how steps were found: "marks", "names", "sizes" or "none"
    steps_ignored: int  # not complete on all ranks
    records: int
    recording_overhead_share: float  # of the time, at most
    problems: list[str]


class Report(TypedDict):
    """All that a report says of a recording."""

    document: int  # version of this layout
    kind: Literal["hvdtune"]
    source: str  # files
    job: Job
    verdict: Finding
    findings: list[Finding]  # the best first
    accounting: Accounting | None  # None without steps, or if waits are not shown
    start: Start | None  # None without one-time starts
    steps: Steps
    waterfall: Waterfall
    phases: Phases | None  # None without marks of phases
    overlap: Overlap
    lateness: Lateness
    stragglers: list[Straggler]
    cpus: list[RankCpus]
    strips: list[Strip]
    fusion: Fusion
    sizes: list[Size]
    points: list[Point]
    tensors: list[Tensor]
    owners: list[Owner]
    stalls: list[Stall]
    tuning: list[TuningMark]
    series: Series
    settings: list[Setting]
    quality: Quality
    roofline: list[list[float]]  # corners: [bytes, 10⁹ bytes a second]
    roof: Roof
    events: list[Event]


# ---- hvdtune report of a timeline in Horovod's layout --------------------------------------------


class HorovodStartPart(TypedDict):
    """A one-time start."""

    begin_us: int
    seconds: float
    waited_s: float  # part of seconds in which ranks waited for each other
    reasons: list[str]


class HorovodStart(TypedDict):
    """One-time starts. No other number contains them."""

    seconds: float
    waited_s: float
    sentence: str
    parts: list[HorovodStartPart]


class LateRank(TypedDict):
    """How late a rank was."""

    rank: int
    operations: int  # with ticks of this rank and another
    last: int  # of these, those in which its tick is the last
    last_share: float
    charged_us: int  # the sum of the waits for it
    wall_us: int  # time in which any tensor waited for it
    share: float  # of the recorded time
    median_late_us: float
    chance: float  # probability that equal ranks cause as much


class SpanTime(TypedDict):
    """How long spans of one name took."""

    level: str  # "negotiation", "operation" or "activity"
    name: str
    count: int
    total_us: int
    mean_us: float
    wall_us: int  # time in which at least one was open
    share: float  # of the recorded time


class TensorTime(TypedDict):
    """What one operation on a tensor costs; medians."""

    tensor: str
    op: str
    count: int
    total_execute_us: int  # the sum
    execute_us: float
    negotiate_us: float | None
    skew_us: float | None
    queue_us: float | None
    bytes: int | None


class HorovodReport(TypedDict):
    """The limited report, from one rank's ticks and spans."""

    document: int
    kind: Literal["horovod"]
    source: str
    verdict: Finding
    findings: list[Finding]
    missing: list[str]  # sentences about what the file does not contain
    summary: str  # the text of `hvdtune timeline summary`
    duration_s: float
    start: HorovodStart | None
    lateness: list[LateRank]
    times: list[SpanTime]
    tensors: list[TensorTime]
    problems: list[str]


# ---- hvdtune diff --------------------------------------------------------------------------------


class Run(TypedDict):
    """One of the two recordings."""

    source: str
    job: str
    ranks: int
    steps: int
    overlap: Overlap


class Change(TypedDict):
    """How the step time changed, by one statistic."""

    a_s: float
    b_s: float
    a_steps: int
    b_steps: int
    change: float  # 1 − b/a: more than 0 is faster
    low: float | None  # its 95 % interval; None with too few steps
    high: float | None
    significant: bool  # the interval does not contain 0


class PartChange(TypedDict):
    """How long a part of the step takes in each run."""

    name: str
    title: str
    a_s: float
    b_s: float
    saved_s: float


class CauseChange(TypedDict):
    """How much of the mean step a cause takes in each run."""

    title: str
    kind: str
    ranks: list[int]  # the ranks that the others wait for
    a_s: float
    b_s: float
    saved_s: float


class BandwidthChange(TypedDict):
    """Bus bandwidth of an operation and size that both runs have."""

    op: str
    ranks: int
    bytes_from: int
    a_gbps: float | None
    b_gbps: float | None
    change: float | None
    a_count: int
    b_count: int


class SettingChange(TypedDict):
    """A setting that differs at the end."""

    name: str
    a: object
    b: object


class Comparison(TypedDict):
    """All that a comparison of two recordings says. Parts and causes are empty if one of them does
    not show when its program waits."""

    document: int
    kind: Literal["diff"]
    a: Run
    b: Run
    notes: list[str]  # other differences
    step: Change  # medians
    mean_step: Change
    parts: list[PartChange]  # of typical steps, the largest change first
    mean_parts: list[PartChange]
    causes: list[CauseChange]  # of typical steps
    mean_causes: list[CauseChange]
    bandwidth: list[BandwidthChange]
    settings: list[SettingChange]
    method: str
    verdict: str
