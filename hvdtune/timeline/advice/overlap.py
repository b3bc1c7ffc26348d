"""Communication that computing does not hide: it is sent too late, or waited for too soon.

DistributedOptimizer records what it found out on its own (HVDTUNE_OVERLAP=auto): a mark of rank 0
that begins with "overlap:".
"""

from __future__ import annotations

import re

import numpy as np

from hvdtune.timeline import words
from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.expected import Expected, one_of, saved
from hvdtune.timeline.evidence.finding import WORTH, Finding
from hvdtune.timeline.record.layout import NONE
from hvdtune.timeline.replay import alone, calls, changes
from hvdtune.timeline.replay.program import Play

#: There is no overlap if at most this share of communication runs while the framework computes.
NO_OVERLAP = 0.15
#: … or less than this share, if all tensors are submitted at once or waited for one by one.
CLEARLY_HIDDEN = 0.5
SMALL = 64 << 10
#: Relative error of the gain: it depends on how batches will be composed, and what computes then.
RELATIVE = 0.3
MOSTLY = 0.8
#: Waiting for single tensors is a habit from this many waits a step on. From this share of the
#: tensors on it is how the program works.
LEAST, MOST = 3, 0.5
#: If the program waits for gradients one by one (small ones, or most of them), that costs at least
#: this share of the step.
SEEN = 0.01
_TOLD = "overlap: "
_TRIED = re.compile(r"tried from step (\d+) to (\d+), ([0-9.]+) % (faster|slower), (kept|left off)")


def one_by_one(case: Case) -> list[Finding]:
    """The program submits gradients and waits for them one by one: all, or a part of them."""
    plays = _of_gradients(case)
    waits = float(np.median([alone.count(one) for one in plays])) if plays else 0.0
    if waits < LEAST or case.program:  # DistributedOptimizer submits before it waits
        return []
    tensors = _tensors(case, plays)
    meant = [one.bytes[alone.members(one)] for one in plays]
    size = float(np.median(np.concatenate(meant)))
    small = size <= SMALL
    cures = [alone.in_groups(), alone.submitted_at_once()] if small else []
    cures += [alone.at_the_end()] if waits < MOST * tensors else [changes.overlapped()]
    if case.has_handles is False:  # every call waits
        cures = [alone.in_groups()]
    best = max((saved(case, _only(case, change)) for change in cures), key=lambda one: one.gain)
    if small:
        # Grouped tensors also save the program's own time for calling each of them.
        fewer_calls = saved(case, _only(case, alone.in_groups(calls=False)))
        best = one_of((best.gain + max(best.gain, fewer_calls.gain)) / 2, (best, fewer_calls))
    if small or waits >= MOST * tensors:
        least, most = best.between
        best = Expected(best.gain, (max(least, min(SEEN, best.gain)), most))
    of = "" if waits >= MOSTLY * tensors else f" of {tensors:.0f}"
    if small:
        kind = "small tensors one by one"
        sentence = (
            f"{waits:.0f}{of and f'{of} tensors'} times a step the program waits for one small "
            f"tensor (typically {words.size(size)}) before it submits the next: each costs "
            "an agreement and a start of its own."
        )
    else:
        kind = "no overlap"
        sentence = (
            f"{'Nothing overlaps: the' if waits >= MOSTLY * tensors else 'The'} program waits for "
            f"{waits:.0f} of {tensors:.0f} tensors a step as soon as it has submitted them, and "
            "computes nothing meanwhile."
        )
    evidence = _evidence(case) | {"waits_per_step": waits, "tensors_per_step": tensors}
    action = _together_action(case, small)
    return [Finding(kind, sentence, action, best.gain, evidence, best.between)]


def _together_action(case: Case, small: bool) -> str:
    """What to do instead of waiting for tensors one by one, in calls that the program has."""
    if small:
        grouped = "Use hvd.grouped_allreduce(tensors) instead of a loop of hvd.allreduce"
        if case.has_handles is False:
            return f"{grouped}."
        if case.has_handles is None:
            return f"{grouped}, or submit all of them before you wait for any."
        return f"{grouped}, or allreduce_async for all and then synchronize."
    if case.has_handles is False:
        return "Reduce them in one call when all are ready: hvd.grouped_allreduce(tensors)."
    if case.has_handles is None:
        return (
            "Submit gradients as they become ready, and wait for all of them only before the "
            "update."
        )
    return (
        "Submit with hvd.allreduce_async as gradients become ready, and hvd.synchronize all of "
        "them only before the update"
        + ("; hvd.DistributedOptimizer does both." if case.uses_torch else ".")
    )


def no_overlap(case: Case) -> list[Finding]:
    """Gradients are sent only when nothing is left to compute."""
    share = _overlap_share(case)
    plays = _of_gradients(case)
    if not plays or share >= CLEARLY_HIDDEN:
        return []
    if case.has_handles is False:
        return []  # its face cannot submit a gradient without waiting for it
    tensors = _tensors(case, plays)
    if float(np.median([alone.count(one) for one in plays])) >= max(LEAST, MOST * tensors):
        return []  # one_by_one
    # If CPUs are scarce, the engine runs between a program's submission and its wait: that looks
    # like overlap, but is none.
    if share >= NO_OVERLAP and not changes.in_a_burst(plays):
        return []
    sentence = (
        f"{'Nothing' if share < NO_OVERLAP else 'Hardly anything'} overlaps: "
        f"{100 * (1 - share):.0f} % of communication runs while the "
        "framework waits, because all gradients are submitted when the backward pass is over."
    )
    if done := what_was_done(case):
        sentence = f"{sentence[:-1]}. {done}"
    # The recorded use of the CPUs is better evidence than the engine's guess at the start.
    no_cpu_left = not case.load.cpus and _engine_chose(case)
    expected = _beyond_settings(case, _only(case, changes.overlapped(no_cpu_left)))
    tried = _TRIED.fullmatch(_found_out(case))
    if tried is not None and tried[5] == "left off":  # a measurement counts more than a replay
        most = float(tried[3]) / 100 if tried[4] == "faster" else 0.0
        least, upper = expected.between
        expected = Expected(min(expected.gain, most), (min(least, most), min(upper, most)))
    if expected.between[0] <= WORTH:  # a healthy job may look like this
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


def _of_gradients(case: Case) -> list[Play]:
    """The sampled steps that send gradients, without all other operations."""
    every = [one for stretch in case.sample.stretches for one in stretch]
    of = [one for one in every if np.isin(one.name, case.gradients).any()]
    return [calls.only(one, case.gradients) for one in of]


def _tensors(case: Case, plays: list[Play]) -> float:
    """The typical number of gradients a step."""
    return float(np.median([np.isin(one.name, case.gradients).sum() for one in plays]))


def _only(case: Case, change: changes.Change) -> changes.Change:
    """The change, applied to gradients only."""
    if all(one.gradients for one in case.analysis.owners):
        return change
    return calls.of_some(case.gradients, change)


def _beyond_settings(case: Case, change: changes.Change) -> Expected:
    """The gain of overlapping on top of better settings: what these save need not be hidden."""
    if case.better_settings is None:
        return saved(case, change, relative=RELATIVE)
    gain, better = case.better_settings
    both = saved(case, lambda s, r: change(*better(s, r)), case.sample, RELATIVE)
    return both.beyond(gain)


def _evidence(case: Case) -> dict[str, float | str]:
    return {
        "overlap_share": _overlap_share(case),
        "exposed_share": case.analysis.overlap.exposed_share,
        "replay_error": case.replay_error(case.sample),
    }


def what_was_done(case: Case) -> str:
    """A sentence about what hvdtune has tried on its own about overlapping; "" if nothing."""
    found = _found_out(case)
    tried = _TRIED.fullmatch(found)
    if tried is not None:
        first, last, percent, change, kept = tried.groups()
        if kept == "kept":
            end = "and has kept it"
        else:
            end = (
                "too little to be sure, and left it off"
                if change == "faster"
                else ("and left it off")
            )
        return (
            f"hvdtune tried overlapping on its own in steps {first} to {last}: "
            f"{percent} % {change}, {end}."
        )
    return f"hvdtune tries overlapping on its own ({found})." if found.startswith("being") else ""


def _found_out(case: Case) -> str:
    """The last mark about overlapping, without its prefix; "" if there is none."""
    texts = case.analysis.tuning["text"]
    told = [str(text) for text in texts if str(text).startswith(_TOLD)]
    return told[-1].removeprefix(_TOLD) if told else ""


def _overlap_share(case: Case) -> float:
    """The share of the gradients' communication during which the framework computes."""
    joint, steps = case.analysis.joint, case.analysis.found_steps
    if all(one.gradients for one in case.analysis.owners):
        return case.analysis.overlap.overlap_share
    reference = joint.reference
    sent = np.flatnonzero((steps.batch_step >= 0) & (reference.rows > 0))
    first = reference.recording.tensors["name"][reference.first_row[sent]]
    sent = sent[np.isin(first, case.gradients)]
    running = hidden = 0.0
    for view in joint.views.values():
        own = sent[view.present[sent]]
        begin, end = view.begin[own], view.end[own]
        running += float((end - begin).sum())
        hidden += float((end - begin - view.blocked.until(end) + view.blocked.until(begin)).sum())
    return hidden / running if running else 1.0


def _overlap_setting(case: Case) -> str:
    return str(case.analysis.settings.get("HVDTUNE_OVERLAP", ""))


def _engine_chose(case: Case) -> bool:
    """Whether DistributedOptimizer submits all gradients at once, in one call, because
    HVDTUNE_OVERLAP=auto found no spare CPU for overlapping."""
    return _overlap_setting(case) == "auto" and case.uses_torch and _in_one_call(case)


def _in_one_call(case: Case) -> bool:
    """Whether one call submits a step's tensors, as DistributedOptimizer.step() does. In recordings
    of earlier versions, most waits are then for several tensors, or most tensors have the same time
    of submission."""
    if case.program:
        return _overlap_setting(case) != "on"
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
    """What to do. HVDTUNE_OVERLAP affects only PyTorch's DistributedOptimizer."""
    if not case.uses_torch and case.has_handles is None:
        return (
            "Submit each gradient as soon as it is computed, and wait for all of them only before "
            "the update."
        )
    if not case.uses_torch:
        return (
            "Submit each gradient with hvd.allreduce_async as soon as it is computed, and "
            "hvd.synchronize all of them only before the update."
        )
    if _in_one_call(case) and _overlap_setting(case) == "off":
        return "HVDTUNE_OVERLAP=on (hvdtune run --overlap on)."
    found = _found_out(case)
    if found.endswith("kept"):
        return "Nothing to do; HVDTUNE_OVERLAP=on overlaps from the first step on."
    if found.endswith("left off"):
        return "Nothing to do; HVDTUNE_OVERLAP=on would overlap anyway."
    if found.startswith("being tried"):
        return "Train longer: hvdtune decides on its own within a few hundred steps."
    if "gradients are changed" in found:
        return (
            "Call optimizer.synchronize() before gradients are changed, and step() inside "
            "optimizer.skip_synchronize(): hvdtune then tries overlapping on its own."
        )
    if _engine_chose(case):
        return (
            "Leave each rank a CPU besides those of its compute threads (OMP_NUM_THREADS): hvdtune "
            "then overlaps on its own."
        )
    if case.program.get("groups"):
        return (
            "A group's gradients are sent when the last of them is ready: leave groups= out, or "
            "make more and smaller groups."
        )
    if case.program:
        return "Leave each rank a CPU besides those of its compute threads (OMP_NUM_THREADS)."
    return "Use hvd.DistributedOptimizer, whose hooks submit each gradient when it is ready."
