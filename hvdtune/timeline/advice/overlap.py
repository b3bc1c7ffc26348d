"""Communication that computing does not hide: what is sent too late, or waited for too soon."""

from __future__ import annotations

import numpy as np

from hvdtune.timeline import alone, whatif, words
from hvdtune.timeline.advice.case import Case
from hvdtune.timeline.advice.expected import Expected, one_of, saved
from hvdtune.timeline.advice.finding import WORTH, Finding
from hvdtune.timeline.capture import NONE

#: There is no overlap when this share of communication at most runs while the framework computes.
NO_OVERLAP = 0.15
#: … or less than this of it, if all tensors are submitted at once or each is waited for by itself.
CLEARLY_HIDDEN = 0.5
SMALL = 64 << 10
#: What overlapping gives depends on how batches will be made up, and on what computes beside them.
RELATIVE = 0.25
MOSTLY = 0.8
#: So many waits a step for one tensor alone are a habit; of so many of its tensors, the program's.
LEAST, MOST = 3, 0.5


def one_by_one(case: Case) -> list[Finding]:
    """Tensors are submitted and waited for one by one: all, or a part of them."""
    plays = [one for stretch in case.sample.stretches for one in stretch]
    waits = float(np.median([alone.count(one) for one in plays])) if plays else 0.0
    if waits < LEAST:
        return []
    tensors = float(np.median([len(one.name) for one in plays]))
    meant = [one.bytes[alone.members(one)] for one in plays]
    size = float(np.median(np.concatenate(meant)))
    small = size <= SMALL
    cures = [alone.in_groups(), alone.submitted_at_once()] if small else []
    cures += [alone.at_the_end()] if waits < MOST * tensors else [whatif.overlapped()]
    best = max((saved(case, change) for change in cures), key=lambda one: one.gain)
    if small:
        # Grouped, tensors also take less of the program's own time, which calling each of them is.
        fewer_calls = saved(case, alone.in_groups(calls=False))
        best = one_of((best.gain + max(best.gain, fewer_calls.gain)) / 2, (best, fewer_calls))
    of = "" if waits >= MOSTLY * tensors else f" of {tensors:.0f}"
    if small:
        kind = "small tensors one by one"
        sentence = (
            f"{waits:.0f}{of and f'{of} tensors'} times a step the program waits for one small "
            f"tensor (typically {words.size(size)}) before it submits the next: each pays for "
            "agreeing and starting by itself."
        )
        action = (
            "hvd.grouped_allreduce(tensors) instead of a loop of hvd.allreduce, or "
            "allreduce_async for all and then synchronize."
        )
    else:
        kind = "no overlap"
        sentence = (
            f"{'Nothing overlaps: the' if waits >= MOSTLY * tensors else 'The'} program waits for "
            f"{waits:.0f} of {tensors:.0f} tensors a step as soon as it has submitted them, and "
            "computes nothing meanwhile."
        )
        action = (
            "Submit with hvd.allreduce_async as gradients become ready, and hvd.synchronize all of "
            "them only before the update"
            + ("; hvd.DistributedOptimizer does both." if case.uses_torch else ".")
        )
    evidence = _evidence(case) | {"waits_per_step": waits, "tensors_per_step": tensors}
    return [Finding(kind, sentence, action, best.gain, evidence, best.between)]


def no_overlap(case: Case) -> list[Finding]:
    """Communication begins when nothing is left to compute."""
    share = case.analysis.overlap.overlap_share
    plays = [one for stretch in case.sample.stretches for one in stretch]
    if not plays or share >= CLEARLY_HIDDEN:
        return []
    tensors = float(np.median([len(one.name) for one in plays]))
    if float(np.median([alone.count(one) for one in plays])) >= max(LEAST, MOST * tensors):
        return []  # one_by_one
    # Where CPUs are scarce, the engine runs before a program that has just submitted comes to its
    # wait: that looks like overlapping, and is none.
    if share >= NO_OVERLAP and not whatif.in_a_burst(plays):
        return []
    sentence = (
        f"{'Nothing' if share < NO_OVERLAP else 'Hardly anything'} overlaps: "
        f"{100 * (1 - share):.0f} % of communication runs while the "
        "framework waits, because all gradients are submitted when the backward pass is over."
    )
    # What CPUs are used for says more than what the engine guessed before it began.
    no_cpu_left = not case.load.cpus and _engine_chose(case)
    expected = _beyond_settings(case, whatif.overlapped(no_cpu_left))
    if expected.between[0] <= WORTH:  # a healthy job may be so
        return []
    evidence = _evidence(case) | {"tensors_per_step": tensors}
    return [
        Finding(
            "no overlap",
            sentence,
            _overlap_action(case),
            expected.gain,
            evidence,
            expected.between,
        )
    ]


def _beyond_settings(case: Case, change: whatif.Change) -> Expected:
    """Of overlapping, on top of better settings: what these save need not be hidden."""
    if case.better_settings is None:
        return saved(case, change, relative=RELATIVE)
    gain, better = case.better_settings
    both = saved(case, lambda s, r: change(*better(s, r)), case.sample, RELATIVE)
    return both.beyond(gain)


def _evidence(case: Case) -> dict[str, float | str]:
    return {
        "overlap_share": case.analysis.overlap.overlap_share,
        "exposed_share": case.analysis.overlap.exposed_share,
        "replay_error": case.replay_error(case.sample),
    }


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
