"""Causes of lost time that lie in what is sent, when, and under which settings. Each function is
one question; each returns the findings that its condition holds for, with the expected gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline import whatif, words
from hvdtune.timeline.capture import NONE
from hvdtune.timeline.causes_ranks import MIB, Case, milliseconds
from hvdtune.timeline.program import Play
from hvdtune.timeline.steps import AUTOMATIC
from hvdtune.timeline.verdict import WORTH, Finding

if TYPE_CHECKING:
    from hvdtune.timeline.cpus import Host
    from hvdtune.timeline.report_data import Analysis

#: Thresholds (MiB) and cycle times (ms) that are tried on the recording.
THRESHOLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CYCLES = (0.1, 0.5, 1.0, 2.0, 5.0)
#: Of values that are as good within this share of a step, the one nearest to the default is told.
AS_GOOD = 0.005
#: One setting gives clearly more than another when it gives this much more of what it gives.
CLEARLY = 0.1
#: "Communication bound" is only what has this share of the step at least.
BOUND = 0.1
#: … and from this share on it is said that waiting for late ranks is not among it.
MENTIONED = 0.005
#: A size that has this much of the best size's bandwidth is that size, or as good.
BEST_SIZE = 0.995
DEFAULT_MIB, DEFAULT_MS = 128, 1.0
#: A tensor is huge when it has this share of the bytes of the step, and comes last when at most
#: this share of the tensors is submitted after it.
HUGE, LAST = 0.2, 0.1
#: … and is so many times as large as the next one: of several equal ones none is to blame.
LARGER = 1.5
#: CPUs are scarce when ranks wait for one during this share of the step, and others have them when
#: the ranks use less than this share of what they would if they only kept each other waiting.
KEPT, OWN = 0.1, 0.9
#: There is no overlap when this share of communication at most runs while the framework computes.
NO_OVERLAP = 0.15
#: … or less than this of it, if all tensors are submitted at once or each is waited for by itself.
CLEARLY_HIDDEN = 0.5
SMALL = 64 << 10
MOSTLY = 0.8
#: In place: share of a staged allreduce's time, see docs/metrics.md.
LARGE = MIB


def no_steps(analysis: Analysis) -> Finding:
    """Nothing can be said about steps."""
    batches = len(analysis.batches)
    return Finding(
        "no steps",
        f"The recording holds {batches} operations but no two whole steps of training, so nothing "
        "can be said about where steps spend their time.",
        "Record longer, at least some steps on every rank; name tensors equally in every step.",
        0.0,
        {"batches": float(batches)},
    )


def settings(case: Case) -> list[Finding]:
    """Fusion threshold and cycle time: is there a better value?

    Either may seem to help where only one is wrong. Told first is the one that gives clearly more,
    or that is further from its default; the other only for what it gives beyond that.
    """
    thresholds = {float(mib): case.sample.gain(whatif.threshold(mib * MIB)) for mib in THRESHOLDS}
    cycles = {ms: case.sample.gain(whatif.cycle(ms * 1e6)) for ms in CYCLES}
    size, time = _nearest(thresholds, DEFAULT_MIB), _nearest(cycles, DEFAULT_MS)
    changes = [
        (thresholds[size], whatif.threshold(size * MIB), lambda gain: _threshold(case, size, gain)),
        (cycles[time], whatif.cycle(time * 1e6), lambda gain: _cycle(case, time, gain)),
    ]
    off = [_distance(case.threshold / MIB, DEFAULT_MIB), _distance(case.cycle / 1e6, DEFAULT_MS)]
    first = int(np.argmax([thresholds[size], cycles[time]]))
    if abs(thresholds[size] - cycles[time]) < CLEARLY * max(thresholds[size], cycles[time]):
        first = int(np.argmax(off))
    gain, change, tell = changes[first]
    if gain < WORTH:
        return []
    case.fixes.append((gain, change))
    found = [tell(gain)]
    _, other, tell = changes[1 - first]
    beyond = case.sample.gain(lambda s, r: other(*change(s, r))) - gain
    return [*found, tell(beyond)] if beyond >= WORTH else found


def _distance(value: float, default: float) -> float:
    """How far a setting is from its default, as a factor's logarithm."""
    return abs(float(np.log(max(value, 1e-6) / default)))


def _tensors(count: float) -> str:
    return f"{count:.3g} {'tensor' if count == 1 else 'tensors'}"


def _threshold(case: Case, best: float, gain: float) -> Finding:
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
    action = (
        f"HOROVOD_FUSION_THRESHOLD={int(best * MIB)} (hvdtune run --fusion-threshold-mb {best:g})."
    )
    return Finding(kind, sentence, action, gain, evidence)


def _cycle(case: Case, best: float, gain: float) -> Finding:
    now, tail = case.cycle / 1e6, case.analysis.fusion.tail_s
    if best < now:
        kind, effect = "cycle time too long", "ready gradients wait that long for company"
    else:
        kind, effect = "cycle time too short", "gradients travel in many small operations"
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
        f"HOROVOD_CYCLE_TIME={best:g} (hvdtune run --cycle-time-ms {best:g}).",
        gain,
        evidence,
    )


def _nearest(gains: dict[float, float], default: float) -> float:
    """Of the values that are as good as the best, the one nearest to the default."""
    most = max(gains.values())
    good = [value for value, gain in gains.items() if gain >= most - AS_GOOD]
    return min(good, key=lambda value: abs(np.log(value / default)))


def huge_tensor(case: Case) -> list[Finding]:
    """One tensor that is most of the traffic and comes last: nothing can hide it."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    if not plays:
        return []
    one = plays[len(plays) // 2]
    at = int(one.bytes.argmax())
    share = float(one.bytes[at] / max(one.bytes.sum(), 1))
    submit = np.min([program.submit for program in one.programs], axis=0)
    later = float((submit > submit[at]).mean())
    next_largest = float(np.sort(one.bytes)[-2]) if len(one.bytes) > 1 else 0.0
    if share < HUGE or later > LAST or len(one.bytes) < 3 or not np.isfinite(submit[at]):
        return []
    if one.bytes[at] < LARGER * next_largest:
        return []
    name = int(one.name[at])
    names = case.analysis.joint.reference.recording.names
    text = names[name].name if name < len(names) else f"number {name}"
    gain = case.gain(whatif.submitted_first(name))
    return [
        Finding(
            "huge tensor last",
            f"Tensor {text} is {100 * share:.0f} % of the bytes ({words.size(one.bytes[at])}) and "
            f"is submitted when {100 * (1 - later):.0f} % of the others have been: nothing is left "
            "to compute while it travels.",
            "Have its gradient computed and submitted earlier (use the layer later in the model, "
            "or order the backward pass), or split the parameter, so that parts of it travel sooner"
            + ("; sparse_as_dense=False if it is an embedding." if case.uses_torch else "."),
            gain,
            {
                "tensor": text,
                "bytes": float(one.bytes[at]),
                "bytes_share": share,
                "tail_ms": 1e3 * case.analysis.fusion.tail_s,
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def cpus_taken(case: Case) -> list[Finding]:
    """Other programs have the CPUs of a host, so that its ranks wait for one though they could
    compute. Ranks that only keep each other waiting are not told of here: while one of these waits,
    the CPU that it waits for is busy with another, so they use at least CPUs × their waiting."""
    load = case.load
    worst: tuple[float, Host] | None = None
    for host in load.hosts:
        kept = load.kept[host.members] / 1e9
        share = float(np.nanmean(kept / case.durations)) if np.isfinite(kept).any() else 0.0
        taken = host.used < OWN * host.cpus * share
        if share >= KEPT and taken and (not worst or share > worst[0]):
            worst = share, host
    if not worst:
        return []
    share, host = worst
    ranks = list(case.analysis.joint.views)
    name = case.analysis.joint.views[ranks[host.members[0]]].recording.identity.host
    return [
        Finding(
            "CPUs taken",
            f"The ranks on host {name} wait for a CPU during {100 * share:.0f} % of the step, "
            f"ready to compute, while they keep only {host.used:.2g} of its {host.cpus} CPUs busy: "
            "other programs run there, or the container's share of the CPUs is used up.",
            f"End the other programs on {name} (top shows them), or give this job CPUs of its own "
            "(cpuset, taskset, a larger CPU limit).",
            case.gain(whatif.never_kept()),
            {
                "host": name,
                "waiting_share": share,
                "cpus_used": host.used,
                "cpus": float(host.cpus),
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def broadcasts(case: Case) -> list[Finding]:
    """Broadcasts in most steps: what one rank has to tell seldom changes from step to step."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    names = case.analysis.joint.reference.recording.names
    sent = {at for at, name in enumerate(names) if name.name.startswith("broadcast.")}
    count = {at: sum(bool((one.name == at).any()) for one in plays) for at in sent}
    steady = [at for at in sorted(sent) if plays and count[at] >= MOSTLY * len(plays)]
    if not steady:
        return []
    step = plays[len(plays) // 2]
    size = float(step.bytes[np.isin(step.name, steady)].sum())
    largest = names[max(steady, key=lambda at: names[at].bytes)].name
    text = largest.removeprefix("broadcast.").removesuffix(".t")
    others = f" and {len(steady) - 1} more" if len(steady) > 1 else ""
    return [
        Finding(
            "broadcast in every step",
            f"The program broadcasts {text}{others} in every step, {words.size(size)}, and waits "
            "for it.",
            "Broadcast it once before the loop, or only when it has changed; let each rank make or "
            "read it by itself if it can.",
            case.gain(whatif.left_out(steady)),
            {
                "tensor": text,
                "bytes": size,
                "broadcasts_per_step": float(len(steady)),
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def no_overlap(case: Case) -> list[Finding]:
    """Communication begins when nothing is left to compute, or is waited for at once."""
    share = case.analysis.overlap.overlap_share
    plays = [one for stretch in case.sample.stretches for one in stretch]
    if not plays or share >= CLEARLY_HIDDEN:
        return []
    waits = float(np.median([len(p.waits) for one in plays for p in one.programs])) - 1
    tensors = float(np.median([len(one.name) for one in plays]))
    # Where CPUs are scarce, the engine runs before a program that has just submitted comes to its
    # wait: that looks like overlapping, and is none.
    one_by_one = waits >= max(3.0, 0.5 * tensors)
    if share >= NO_OVERLAP and not one_by_one and not whatif.in_a_burst(plays):
        return []
    size = float(np.median(np.concatenate([one.bytes for one in plays])))
    evidence: dict[str, float | str] = {
        "overlap_share": share,
        "waits_per_step": waits,
        "tensors_per_step": tensors,
        "exposed_share": case.analysis.overlap.exposed_share,
        "replay_error": case.replay_error(case.sample),
    }
    if one_by_one and size <= SMALL:
        gain = max(case.gain(whatif.together()), case.gain(whatif.overlapped()))
        return [
            Finding(
                "small tensors one by one",
                f"{waits:.0f} times a step the program waits for one small tensor (typically "
                f"{words.size(size)}) before it submits the next: each pays for agreeing and "
                "starting by itself.",
                "hvd.grouped_allreduce(tensors) instead of a loop of hvd.allreduce, or "
                "allreduce_async for all and then synchronize.",
                gain,
                evidence,
            )
        ]
    if one_by_one:
        sentence = (
            f"Nothing overlaps: the program waits for {waits:.0f} of {tensors:.0f} tensors a step "
            "as soon as it has submitted them, and computes nothing meanwhile."
        )
        action = (
            "Submit with hvd.allreduce_async as gradients become ready, and hvd.synchronize all of "
            "them only before the update"
            + ("; hvd.DistributedOptimizer does both." if case.uses_torch else ".")
        )
    else:
        sentence = (
            f"{'Nothing' if share < NO_OVERLAP else 'Hardly anything'} overlaps: "
            f"{100 * (1 - share):.0f} % of communication runs while the "
            "framework waits, because all gradients are submitted when the backward pass is over."
        )
        action = _overlap_action(case)
    # What CPUs are used for says more than what the engine guessed before it began.
    no_cpu_left = not one_by_one and not case.load.cpus and _engine_chose(case)
    gain = case.gain(whatif.overlapped(no_cpu_left))
    return [Finding("no overlap", sentence, action, gain, evidence)]


def _overlap_setting(case: Case) -> str:
    return str(case.analysis.settings.get("HVDTUNE_OVERLAP", ""))


def _engine_chose(case: Case) -> bool:
    """DistributedOptimizer hands over all gradients at once, because HVDTUNE_OVERLAP=auto finds no
    CPU left over for overlapping: it does so in one call."""
    return _overlap_setting(case) == "auto" and case.uses_torch and _in_one_call(case)


def _in_one_call(case: Case) -> bool:
    """One call hands over a step's tensors, as DistributedOptimizer.step() does: most have the same
    time of submission. Earlier recordings tell it by waits that are mostly for several tensors."""
    view = case.analysis.joint.reference
    if len(view.blocked.names) and float((view.blocked.names == NONE).mean()) > MOSTLY:
        return True
    if any(name.name.startswith("grouped_allreduce.") for name in view.recording.names):
        return False  # the program's own call
    shares = [
        float(np.unique(own, return_counts=True)[1].max() / len(own))
        for stretch in case.sample.stretches
        for one in stretch
        for program in one.programs
        if len(own := program.submit[np.isfinite(program.submit)]) > 1
    ]
    return bool(shares) and float(np.median(shares)) > MOSTLY


def _overlap_action(case: Case) -> str:
    """HVDTUNE_OVERLAP is DistributedOptimizer's, which only PyTorch's face has."""
    if not case.uses_torch:
        return (
            "Submit each gradient with hvd.allreduce_async as soon as it is computed, and "
            "hvd.synchronize all of them only before the update."
        )
    if _in_one_call(case) and _overlap_setting(case) == "off":
        return "HVDTUNE_OVERLAP=on (hvdtune run --overlap on)."
    if _engine_chose(case):
        return (
            "Leave a CPU to each rank beside its compute threads (OMP_NUM_THREADS) and set "
            "HVDTUNE_OVERLAP=on."
        )
    return "Use hvd.DistributedOptimizer, whose hooks submit each gradient when it is ready."


def copies(case: Case) -> list[Finding]:
    """Large gradients are packed and unpacked though they could be reduced where they are. The gain
    is what that saves on top of the best change found before."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    recording = case.analysis.recording
    ranks = recording.size
    if not plays or not case.uses_torch or ranks < 2 or any(one.in_place for one in plays):
        return []
    if case.part("copy_in_s") + case.part("reduce_s") + case.part("copy_out_s") < WORTH:
        return []
    # docs/performance.md: a staged allreduce moves 5n - 3 times the bytes, one in place 3n - 1.
    ratio = (3 * ranks - 1) / (5 * ranks - 3)

    def factor(one: Play, members: list[int]) -> float:
        large = int(one.bytes[members].sum()) >= LARGE and bool(one.reducing[members].all())
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
    """Tensors without a name of their own, or more names than the cache holds: every operation is
    described and compared anew."""
    view = case.analysis.joint.reference
    names = [name.name for name in view.recording.names]
    made_up = sum(bool(AUTOMATIC.search(name)) for name in names)
    used = len(view.recording.tensors)
    capacity = _capacity(case)
    if not used or (made_up < 0.5 * used and len(names) <= capacity):
        return []
    closing = case.analysis.batches["negotiation_s"].dropna() * 1e9
    quick = float(closing[closing > 0].quantile(0.05)) if (closing > 0).any() else 0.0
    gain = case.gain(whatif.quicker_negotiation(quick, case.costs.beginning))
    if made_up >= 0.5 * used:
        sentence = (
            f"{made_up} tensors have names that the engine made up: they never come again, so "
            "every operation is described to the coordinator and compared anew."
        )
        action = "Give tensors names that are the same in every step: hvd.allreduce(x, name=…)."
    else:
        sentence = (
            f"{len(names)} different tensors are used and the cache holds {capacity:.0f}, so "
            "descriptions travel again and again."
        )
        action = f"HOROVOD_CACHE_CAPACITY={2 ** int(np.ceil(np.log2(len(names) + 1)))}."
    return [
        Finding(
            "cache misses",
            sentence,
            action,
            gain,
            {"names": float(len(names)), "made_up": float(made_up), "capacity": capacity},
        )
    ]


def _capacity(case: Case) -> float:
    try:
        return float(case.analysis.settings["HOROVOD_CACHE_CAPACITY"])
    except (KeyError, TypeError, ValueError):
        return 1024.0


def communication(case: Case) -> list[Finding]:
    """What is left is moving bytes: fewer of them, or less often. The gain is what that saves on
    top of the best change found before."""
    skew = case.part("skew_wait_s")
    exposed = case.analysis.overlap.exposed_share - skew
    apart = ", waiting for late ranks not counted" if skew >= MENTIONED else ""
    sizes = case.analysis.sizes
    reduced = sizes[(sizes["op"] == "allreduce") & sizes["busbw_gbps"].notna()]
    if exposed < BOUND or reduced.empty:
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
            case.gain_beyond(whatif.every_other_step()),
            {
                "exposed_share": exposed,
                "busbw_gbps": float(heaviest["busbw_gbps"]),
                "peak_share": share,
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]


def _near(share: float, measured: bool) -> str:
    """How much of the best bandwidth that is; nothing where it is the best, for want of another."""
    if not np.isfinite(share) or (not measured and share >= BEST_SIZE):
        return ""
    return f", {100 * share:.0f} % of " + ("this machine's peak" if measured else "the best size's")


def _send_less(case: Case) -> str:
    if case.uses_torch:
        return (
            "Send less often: DistributedOptimizer(…, backward_passes_per_step=2) with half the "
            "batch each, or a larger batch; or fewer bytes: compression=hvd.Compression.fp16, "
            "where converting costs less than sending."
        )
    return (
        "Send less often: add up the gradients of two batches before hvd.allreduce, or take a "
        "larger batch; or fewer bytes: reduce float16 instead of float32, where converting costs "
        "less than sending."
    )


def nothing(case: Case) -> Finding:
    """The steps are as good as they get from here."""
    overlap = case.analysis.overlap
    free = 1 - overlap.ideal_free_communication_s / overlap.step_s
    return Finding(
        "compute bound",
        f"Nothing to gain: the framework computes {100 * (1 - overlap.exposed_share):.1f} % of the "
        f"step, and communication that cost nothing would save {100 * max(0.0, free):.1f} %.",
        "Make the computing faster: the job hardly waits for communication.",
        0.0,
        {
            "compute_share": 1 - overlap.exposed_share,
            "free_communication_gain": max(0.0, free),
            "replay_error": case.replay_error(case.sample),
        },
    )
