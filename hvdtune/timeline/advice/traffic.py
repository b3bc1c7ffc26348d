"""Causes of lost time in the traffic: what is sent, how, and under which settings. Each function is
one question and returns its findings, with the expected gain."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from hvdtune.timeline import words
from hvdtune.timeline.evidence.case import MIB, Case, milliseconds
from hvdtune.timeline.evidence.expected import Expected, one_of, saved
from hvdtune.timeline.evidence.finding import WORTH, Finding
from hvdtune.timeline.replay import calls
from hvdtune.timeline.replay import changes as whatif
from hvdtune.timeline.replay.program import Play
from hvdtune.timeline.structure.steps import is_made_up

#: Thresholds (MiB) and cycle times (ms) that are tried on the recording.
THRESHOLDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
CYCLES = (0.1, 0.5, 1.0, 2.0, 5.0)
#: Of values whose gains differ by less than this share of a step, the one nearest to the default is
#: recommended.
AS_GOOD = 0.005
#: One setting saves clearly more than another if the difference is this share of what it saves.
CLEARLY = 0.1
#: Batches of this many bytes show what a byte costs: this percentile of them. An allreduce moves
#: TWICE as much as a broadcast of as many bytes.
BYTES_TELL, QUICK, TWICE = 64 << 10, 10, 2
#: If ranks have at most one CPU each, fewer batches saved this many times what the replay says,
#: typically and at most (benchmarks/timeline/planted.py, "threshold 0").
FEWER_WAKES = 1.5, 2.6
#: A job is "communication bound" only from this share of the step on.
BOUND = 0.1
#: … and from this share of waiting for late ranks on, the sentence says that this is not counted.
MENTIONED = 0.005
#: A size with this share of the best size's bandwidth is as good as the best.
BEST_SIZE = 0.995
DEFAULT_MIB, DEFAULT_MS = 128, 1.0
#: A tensor is huge if it has this share of the step's bytes, and last if at most this share of the
#: tensors is submitted after it.
HUGE, LAST = 0.2, 0.1
#: … and is this many times as large as the next one: among equal ones none is to blame.
LARGER = 1.5
#: Batches of at least this many bytes are faster if reduced in place, see docs/metrics.md.
LARGE = MIB
#: The extra time of a step for each tensor that is described anew, s: least, typical, most
#: (benchmarks/timeline/planted.py, "names made up" and "cache too small").
DESCRIBED = 1e-6, 3e-6, 10e-6
#: Names are the cause if this share of the tensors has names that never repeat; the size of the
#: cache, if it has forgotten this share of the operations that come again.
NAMELESS = FORGOTTEN = 0.5


def settings(case: Case) -> list[Finding]:
    """Fusion threshold and cycle time: is there a better value?

    Both may seem to help even if only one is wrong. The first finding is about the one that saves
    clearly more, or is further from its default; the other one's gain is what it saves beyond that.
    """
    sizes = case.sample.gains_of_thresholds([mib * MIB for mib in THRESHOLDS])
    times = case.sample.gains_of_cycles([ms * 1e6 for ms in CYCLES])
    thresholds = dict(zip(THRESHOLDS, sizes, strict=True))
    cycles = dict(zip(CYCLES, times, strict=True))
    size, time = _nearest(thresholds, DEFAULT_MIB), _nearest(cycles, DEFAULT_MS)
    changes = [
        (
            thresholds[size],
            whatif.threshold(size * MIB),
            lambda gives: _threshold(case, size, gives),
        ),
        (cycles[time], whatif.cycle(time * 1e6), lambda gives: _cycle(case, time, gives)),
    ]
    off = [_distance(case.threshold / MIB, DEFAULT_MIB), _distance(case.cycle / 1e6, DEFAULT_MS)]
    first = int(np.argmax([thresholds[size], cycles[time]]))
    if abs(thresholds[size] - cycles[time]) < CLEARLY * max(thresholds[size], cycles[time]):
        first = int(np.argmax(off))
    gain, change, tell = changes[first]
    if gain < WORTH:
        return []
    alone = saved(case, change)
    if first == 0 and size * MIB > case.threshold:
        alone = _fusing(case, change, alone)
    case.better_settings = gain, change
    found = [tell(alone)]
    _, other, tell = changes[1 - first]
    both = saved(case, lambda s, r: other(*change(s, r)), case.sample)
    return [*found, tell(both.beyond(gain))] if both.gain - gain >= WORTH else found


def _fusing(case: Case, change: whatif.Change, replayed: Expected) -> Expected:
    """The gain of larger batches. Small batches say little about the cost of a byte in a large one:
    it may be as low as in the fastest of the recording. Without a spare CPU, each batch takes more
    from the programs than the replay models (FEWER_WAKES)."""
    joint = case.analysis.joint
    large = np.flatnonzero(joint.bytes >= BYTES_TELL)
    meanings = [replayed]
    if len(large):
        quick = np.percentile(joint.together_of(large) / joint.bytes[large], QUICK)
        cheaper = whatif.cheaper_bytes(TWICE * float(quick))
        meanings.append(saved(case, lambda s, r: cheaper(*change(s, r)), case.sample))
    gains = [one.gain for one in meanings]
    known = one_of((min(gains) + max(gains)) / 2, meanings)
    if not any(host.cpus <= host.ranks for host in case.load.hosts):
        return known
    least, most = known.between
    typically, at_most = FEWER_WAKES
    return Expected(
        min(1.0, typically * known.gain), (least, min(1.0, max(most, at_most * known.gain)))
    )


def _distance(value: float, default: float) -> float:
    """How far a setting is from its default: the logarithm of their ratio."""
    return abs(float(np.log(max(value, 1e-6) / default)))


def _tensors(count: float) -> str:
    return f"{count:.3g} {'tensor' if count == 1 else 'tensors'}"


def _threshold(case: Case, best: float, gives: Expected) -> Finding:
    now, fusion = case.threshold / MIB, case.analysis.fusion
    if best > now:
        kind = "fusion threshold too small"
        sentence = (
            f"The fusion threshold is {'0, so fusion is off' if now == 0 else f'{now:.3g} MiB'}: "
            f"{fusion.batches_per_step:.0f} operations a step carry "
            f"{_tensors(fusion.tensors_per_batch)} each, and each operation costs time "
            "to agree on and to start."
        )
    else:
        kind = "fusion threshold too large"
        sentence = (
            f"The fusion threshold of {now:.3g} MiB keeps gradients back for large operations "
            f"({fusion.batches_per_step:.3g} a step), which overlap little with the backward pass."
        )
    evidence: dict[str, float | str] = {
        "threshold_mib": now,
        "better_mib": best,
        "batches_per_step": fusion.batches_per_step,
        "tensors_per_batch": fusion.tensors_per_batch,
        "replay_error": case.replay_error(case.sample),
    }
    action = _tuned(case) + (
        f"HOROVOD_FUSION_THRESHOLD={int(best * MIB)} (hvdtune run --fusion-threshold-mb {best:g})."
    )
    return Finding(kind, sentence, action, gives.gain, evidence, gives.between)


def _cycle(case: Case, best: float, gives: Expected) -> Finding:
    now, tail = case.cycle / 1e6, case.analysis.fusion.tail_s
    if best < now:
        kind, effect = (
            "cycle time too long",
            "ready gradients wait that long for others to join them",
        )
    else:
        kind, effect = "cycle time too short", "gradients are sent in many small operations"
    evidence: dict[str, float | str] = {
        "cycle_ms": now,
        "better_ms": best,
        "tail_ms": 1e3 * tail,
        "replay_error": case.replay_error(case.sample),
    }
    return Finding(
        kind,
        f"The cycle time is {now:.3g} ms: {effect}, and {milliseconds(tail)} of communication are "
        "left when the backward pass is over.",
        _tuned(case) + f"HOROVOD_CYCLE_TIME={best:g} (hvdtune run --cycle-time-ms {best:g}).",
        gives.gain,
        evidence,
        gives.between,
    )


def _tuned(case: Case) -> str:
    """The advice for a setting: with the autotuner on, let that set it."""
    on = str(case.analysis.settings.get("HOROVOD_AUTOTUNE", "")).lower() in ("1", "true")
    return "The autotuner is on and may not be done: let it run for longer, or set " if on else ""


def _nearest(gains: dict[float, float], default: float) -> float:
    """The value nearest to the default among those as good as the best."""
    most = max(gains.values())
    good = [value for value, gain in gains.items() if gain >= most - AS_GOOD]
    return min(good, key=lambda value: abs(np.log(value / default)))


def huge_tensor(case: Case) -> list[Finding]:
    """One tensor is most of the traffic and is sent last: nothing can hide it."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    if not plays:
        return []
    one = plays[len(plays) // 2]
    of = np.isin(one.name, case.gradients)
    sizes = np.where(of, one.bytes, 0)
    at = int(sizes.argmax())
    share = float(sizes[at] / max(sizes.sum(), 1))
    submit = np.min([program.submit for program in one.programs], axis=0)
    later = float((submit > submit[at])[of].mean()) if of.any() else 1.0
    next_largest = float(np.sort(sizes)[-2]) if len(sizes) > 1 else 0.0
    if share < HUGE or later > LAST or of.sum() < 3 or not np.isfinite(submit[at]):
        return []
    if one.bytes[at] < LARGER * next_largest:
        return []
    name = int(one.name[at])
    names = case.analysis.joint.reference.recording.names
    text = names[name].name if name < len(names) else f"number {name}"
    gives = saved(case, whatif.submitted_first(name))
    return [
        Finding(
            "huge tensor last",
            f"Tensor {text} is {100 * share:.0f} % of the bytes ({words.size(one.bytes[at])}) and "
            f"is submitted after {100 * (1 - later):.0f} % of the others: nothing is left "
            "to compute while it is sent.",
            "Compute and submit its gradient earlier (use the layer later in the model, or order "
            "the backward pass), or split the parameter, so that parts of it are sent earlier"
            + ("; sparse_as_dense=False if it is an embedding." if case.uses_torch else "."),
            gives.gain,
            {
                "tensor": text,
                "bytes": float(one.bytes[at]),
                "bytes_share": share,
                "tail_ms": 1e3 * case.analysis.fusion.tail_s,
                "replay_error": case.replay_error(case.sample),
            },
            gives.between,
        )
    ]


def copies(case: Case) -> list[Finding]:
    """Large gradients are packed and unpacked although they could be reduced in place. The gain is
    what that saves on top of the best change found before."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    recording = case.analysis.recording
    ranks = recording.size
    if not plays or not case.uses_torch or ranks < 2 or any(one.in_place for one in plays):
        return []
    if case.program.get("views") or case.program.get("compression"):
        return []  # gradients are in place already, or cannot be: other tensors are sent
    if case.part("copy_in_s") + case.part("reduce_s") + case.part("copy_out_s") < WORTH:
        return []
    # docs/performance.md: a staged allreduce moves 5n - 3 times the bytes, one in place 3n - 1.
    ratio = (3 * ranks - 1) / (5 * ranks - 3)

    def factor(one: Play, members: list[int]) -> float:
        large = int(one.bytes[members].sum()) >= LARGE
        large = large and bool(np.isin(one.name[members], case.gradients).all())
        return ratio if large else 1.0

    gain = case.gain_beyond(whatif.batches_take(factor))
    exposed = case.part("copy_in_s") + case.part("reduce_s") + case.part("copy_out_s")
    return [
        Finding(
            "copies",
            f"Operations run for {100 * exposed:.0f} % of the step while the framework waits, and "
            "part of that is copying gradients into the fusion buffer and back.",
            "DistributedOptimizer(…, gradient_as_buffer_view=True) and "
            "zero_grad(set_to_none=False): gradients are then reduced where they are.",
            gain,
            {
                "running_exposed_share": exposed,
                "time_ratio_in_place": ratio,
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def automatic_names(case: Case) -> list[Finding]:
    """Tensors have names that never repeat, or that the cache has forgotten when they do, after too
    many others: every operation is described and compared anew."""
    capacity = _capacity(case)
    use = _names_in_use(case, capacity)
    nameless = use.never_again >= NAMELESS
    if not use.tensors or not (nameless or use.forgotten >= FORGOTTEN):
        return []
    closing = case.analysis.batches["negotiation_s"].dropna() * 1e9
    quick = float(closing[closing > 0].quantile(0.05)) if (closing > 0).any() else 0.0
    agreeing = max(0.0, case.gain(whatif.quicker_negotiation(quick, case.costs.beginning)))
    each = use.tensors / len(case.durations) / float(case.durations.mean())
    least, likely, most = (min(1.0, agreeing + each * cost) for cost in DESCRIBED)
    if nameless:
        names = "that the engine made up" if use.mostly_made_up else "that the program uses once"
        sentence = (
            f"{100 * use.never_again:.0f} % of the tensors have names {names}: such names never "
            "repeat, so every operation is described to the coordinator and compared anew."
        )
        action = "Give tensors names that are the same in every step: hvd.allreduce(x, name=…)."
    else:
        sentence = (
            f"{use.repeating} different tensors are used again and again and the cache holds "
            f"{capacity:.0f}, so their descriptions are sent repeatedly."
        )
        action = f"HOROVOD_CACHE_CAPACITY={2 ** int(np.ceil(np.log2(use.repeating + 1)))}."
    return [
        Finding(
            "cache misses",
            sentence,
            action,
            likely,
            {
                "repeating_names": float(use.repeating),
                "forgotten_share": use.forgotten,
                "never_repeating_share": use.never_again,
                "capacity": capacity,
            },
            (least, most),
        )
    ]


@dataclass(frozen=True)
class _Names:
    """The names of the tensors in whole steps. tensors: how many there are. never_again: the share
    of them whose name never repeats. repeating: how many names repeat. forgotten: the share of the
    operations that come again that the cache has forgotten by then."""

    tensors: int
    never_again: float
    mostly_made_up: bool  # those that never repeat; otherwise the program names them
    repeating: int
    forgotten: float


def _names_in_use(case: Case, capacity: float) -> _Names:
    """Operations are known again by name and process set; all tensors of one are in one batch."""
    view, steps = case.analysis.joint.reference, case.analysis.found_steps
    rows, batch = view.rows_of(np.flatnonzero((view.rows > 0) & (steps.batch_step >= 0)))
    numbers: dict[tuple[int, str], int] = {}
    number_of = np.array(
        [
            -1
            if is_made_up(one)
            else numbers.setdefault((one.process_set, operation), len(numbers))
            for one, operation in zip(
                view.recording.names, view.recording.operations(), strict=True
            )
        ],
        np.int64,
    )
    ids = view.recording.tensors["name"][rows].astype(np.int64)
    known = ids < len(number_of)
    number, batch = number_of[ids[known]], batch[known]
    named, count = number >= 0, max(len(numbers), 1)
    operations = np.unique(batch[named] * count + number[named])
    own = operations % count
    uses = np.bincount(own, minlength=count)
    repeating, again = int((uses > 1).sum()), len(own) - int((uses > 0).sum())
    forgotten = _forgotten(own, capacity) if repeating > capacity else 0
    made_up = int((~named).sum())
    once = int((uses[number[named]] == 1).sum()) if len(steps) > 2 else 0
    return _Names(
        len(number),
        (made_up + once) / max(len(number), 1),
        made_up >= once,
        repeating,
        forgotten / max(again, 1),
    )


def _forgotten(operations: np.ndarray, capacity: float) -> int:
    """How many of these operations (numbers, in their order) have been used before, but are not in
    the cache any more: it forgets what was used longest ago."""
    cache: OrderedDict[int, None] = OrderedDict()
    known: set[int] = set()
    count = 0
    for one in operations.tolist():
        if one in cache:
            cache.move_to_end(one)
            continue
        count += one in known
        known.add(one)
        cache[one] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return count


def _capacity(case: Case) -> float:
    try:
        return float(case.analysis.settings["HOROVOD_CACHE_CAPACITY"])
    except (KeyError, TypeError, ValueError):
        return 1024.0


def communication(case: Case) -> list[Finding]:
    """The rest of the time goes into moving bytes: send fewer, or less often. The gain is what that
    saves on top of the best change found before."""
    skew = case.part("skew_wait_s")
    exposed = _exposed(case) - skew
    apart = ", waiting for late ranks not counted" if skew >= MENTIONED else ""
    if exposed < BOUND:
        return []
    sizes = case.analysis.sizes
    reduced = sizes[(sizes["op"] == "allreduce") & sizes["busbw_gbps"].notna()]
    if reduced.empty:
        return []
    heaviest = reduced.loc[reduced["total_s"].idxmax()]
    share = float(heaviest["peak_share"])
    near = _near(share, any(r.identity.peak_gbps for r in case.analysis.recording.ranks.values()))
    return [
        Finding(
            "communication bound",
            f"{100 * exposed:.0f} % of the step is communication that is not hidden{apart}; most "
            f"of it are allreduces of {words.size(heaviest['bytes'])} at "
            f"{words.bandwidth(1e9 * heaviest['busbw_gbps'])} bus bandwidth{near}.",
            _send_less(case),
            case.gain_beyond(calls.every_other_step(case.gradients)),
            {
                "exposed_share": exposed,
                "busbw_gbps": float(heaviest["busbw_gbps"]),
                "peak_share": share,
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def _exposed(case: Case) -> float:
    """Share of the step in which the program is blocked, without the time of other operations."""
    others = [one for one in case.analysis.owners if not one.gradients]
    spent = sum(one.blocked_s - one.late_s for one in others)
    return case.analysis.overlap.exposed_share - spent / float(case.durations.mean())


def _near(share: float, measured: bool) -> str:
    """`, 80 % of the best size's`: its share of the best bandwidth; "" if it is itself the best."""
    if not np.isfinite(share) or (not measured and share >= BEST_SIZE):
        return ""
    return f", {100 * share:.0f} % of " + ("this machine's peak" if measured else "the best size's")


def _send_less(case: Case) -> str:
    if case.uses_torch:
        often = (
            "Send less often: DistributedOptimizer(…, "
            f"backward_passes_per_step={case.more_passes}) with half the batch each, or a larger "
            "batch"
        )
        if case.program.get("compression"):
            return f"{often}."
        return (
            f"{often}; or send fewer bytes: compression=hvd.Compression.fp16, if converting costs "
            "less than sending."
        )
    return (
        "Send less often: add up the gradients of two batches before hvd.allreduce, or use a "
        "larger batch; or send fewer bytes: reduce float16 instead of float32, if converting costs "
        "less than sending."
    )
