"""Causes of lost time in the ranks' own time: slow input, a slow update, work besides training.

These findings are about time that all ranks spend in every step. If a single rank does, its finding
(ranks.py) says in which phase it takes longer than the others (`told`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hvdtune.timeline import words
from hvdtune.timeline.analysis.phases import (
    BACKWARD,
    BEFORE,
    BETWEEN,
    CHECKPOINT,
    EVALUATION,
    FORWARD,
    INPUT,
    UPDATE,
    excess,
    on_device,
    where,
)
from hvdtune.timeline.evidence.case import Case, milliseconds
from hvdtune.timeline.evidence.finding import ABSOLUTE, RELATIVE, WORTH, Finding
from hvdtune.timeline.replay import changes
from hvdtune.timeline.replay.program import Play, Program

#: All ranks' input, work besides training and update are reported from this share of the step on …
LONG = 0.1
#: … and from this many seconds on: handing over a batch from a worker takes as long.
LEAST = 1e-3
#: An update that takes as long as Adam's is reported from this share of the computing on; one that
#: takes this many times as long, from LONG on.
MUCH, SLOWER = 0.4, 1.5
#: The most that an update takes on a CPU per gradient byte and per tensor, s (PyTorch 2.13, not
#: fused); the fused Adam takes a quarter of it.
ADAM, SGD, FUSED = (1.8e-9, 33e-6), (0.5e-9, 15e-6), 0.25


# ---- all ranks alike -----------------------------------------------------------------------------


def slow_input(case: Case) -> list[Finding]:
    """All ranks wait for their input in every step, or prepare it before the forward pass."""
    names = [INPUT] if on_device(case.analysis) else [INPUT, BEFORE]
    own = _seconds(case, names)
    spent = _common(own)
    share = float(spent[case.usual].mean() / case.durations[case.usual].mean())
    if share < LONG or spent[case.usual].mean() < LEAST or not _all_recorded(case):
        return []
    if _has_grown(case, spent):
        return []
    who, s = _who(case)
    loading = float(_common(_seconds(case, [INPUT]))[case.usual].mean())
    took = milliseconds(float(spent[case.usual].mean()))
    rest = np.maximum(case.durations - spent, 0.0)
    most = case.sample.gain(_earlier(own))
    gain = case.gain(_earlier(np.broadcast_to(spent, own.shape)))
    least = case.sample.gain(_earlier(np.broadcast_to(np.minimum(spent, rest), own.shape)))
    if loading >= 0.5 * spent[case.usual].mean():
        sentence = (
            f"{who} wait{s} for input: for {took} of each step ({100 * share:.0f} %), while "
            "nothing is computed."
        )
        ahead = (
            "Load ahead: DataLoader(…, num_workers=2 or more, prefetch_factor=4, "
            "persistent_workers=True, pin_memory=True on GPUs); if the workers are busy already,"
            if case.uses_torch
            else "Load ahead, in a thread or a process; if it is busy all the time,"
        )
        action = f"{ahead} make the input cheaper: decode and resize it once, in advance."
    else:
        sentence = (
            f"{who} spend{s} {took} of each step ({100 * share:.0f} %) between the update and the "
            "forward pass: on preparing input, or on work after a step (a log, a "
            "checkpoint)."
        )
        loader = "with a DataLoader(…, num_workers=2 or more) or a thread"
        loader = loader if case.uses_torch else "in a thread or a process"
        action = (
            f"Load the next batch while the program trains on this one, {loader}; do the rest "
            'less often, or in the background. To see which it is, put "with hvd.mark(…):" around '
            "a part of it."
        )
    evidence: dict[str, float | str] = {
        "input_share": share,
        "input_ms": 1e3 * loading,
        "before_forward_ms": 1e3 * float(spent[case.usual].mean()) - 1e3 * loading,
        "replay_error": case.replay_error(case.sample),
    }
    return [Finding("slow input", sentence, action, gain, evidence, _around(least, gain, most))]


def _has_grown(case: Case, spent: np.ndarray) -> bool:
    """Whether steps have become longer on all ranks, and `spent` ([S] s) was not a large part of
    them before: then the growth is what is wrong."""
    found = case.change
    if found is None or not found.everywhere:
        return False
    level = found.course.level
    before = case.usual & (level <= level.min() + LONG * float(np.ptp(level)))
    return bool(before.any()) and float(spent[before].mean()) < LONG * float(
        case.durations[before].mean()
    )


def slow_update(case: Case) -> list[Finding]:
    """The optimizer's update takes much longer than usual for that many bytes, or is such a large
    part of the computing that a faster one would pay off."""
    own = _seconds(case, [UPDATE])
    usual = case.usual
    spent = _common(own)
    took, step = float(spent[usual].mean()), float(case.durations[usual].mean())
    if on_device(case.analysis) or took < max(LEAST, LONG * step) or not _all_recorded(case):
        return []
    if _has_grown(case, spent):
        return []
    tensors, size = _gradients(case)
    model, (by_byte, by_tensor) = (
        ("SGD", SGD) if case.program.get("update") == "SGD" else ("Adam", ADAM)
    )
    normal = (by_byte * size + by_tensor * tensors) * _crowd(case)
    computing = float(1e-9 + _compute(case)[:, usual].mean())
    slow = took > SLOWER * normal
    fused = bool(case.program.get("fused"))
    if not slow and (took < MUCH * computing or fused or model == "SGD" or not case.uses_torch):
        return []
    if slow:
        left, most_left, least_left = 0.5 * normal, normal, 0.0
        hint = "" if fused else " (fused=True)"
        usual_one = f"PyTorch's {model}" if case.uses_torch else f"an efficient {model}"
        sentence = (
            f"The optimizer's update takes {milliseconds(took)} of each step on every rank "
            f"({100 * took / step:.0f} %); {usual_one} would take about "
            f"{milliseconds(normal)} for as many bytes."
        )
        action = (
            "See what else optimizer.step() does: Python for each parameter, a schedule, a "
            f"norm, a copy of the weights. Use one of torch.optim's{hint}, do the rest "
            "less often, or on fewer and larger tensors."
            if case.uses_torch
            else "See what else the update does: Python for each parameter, a schedule, a norm, a "
            "copy of the weights. Do that less often, or on fewer and larger tensors."
        )
    else:
        left, most_left, least_left = FUSED * took, 0.6 * took, 0.1 * took
        sentence = (
            f"The optimizer's update is {100 * took / computing:.0f} % of the computing on "
            f"every rank: {milliseconds(took)} of each step for {words.size(size)} of gradients."
        )
        action = (
            "Pass fused=True to torch.optim's optimizer: on CPUs it then takes about a quarter of "
            "the time. Or update less often: DistributedOptimizer(…, "
            f"backward_passes_per_step={case.more_passes})."
        )
    gains = [
        case.sample.gain(_earlier(np.maximum(own - rest, 0.0), at_end=True))
        for rest in (most_left, left, least_left)
    ]
    case.fixes.append((gains[1], _earlier(np.maximum(own - left, 0.0), at_end=True)))
    return [
        Finding(
            "slow update",
            sentence,
            action,
            gains[1],
            {
                "update_ms": 1e3 * took,
                "update_share": took / step,
                "usual_ms": 1e3 * normal,
                "gradient_bytes": size,
                "tensors": tensors,
                "replay_error": case.replay_error(case.sample),
            },
            _around(*gains),
        )
    ]


def beside_training(case: Case) -> list[Finding]:
    """All ranks do something besides training in every step."""
    if on_device(case.analysis) or not _all_recorded(case):
        return []
    usual, (who, s) = case.usual, _who(case)
    found = []
    for name, what, action in (
        (BETWEEN, "between the update and the next input", "Log, print and save less often"),
        (EVALUATION, "with forward passes without gradients", "Evaluate less often"),
        (CHECKPOINT, _saving(case), "Save checkpoints less often, or in the background"),
    ):
        own = _seconds(case, [name])
        spent = _common(own)
        took, step = float(spent[usual].mean()), float(case.durations[usual].mean())
        if took < max(LEAST, LONG * step) or np.median(spent[usual]) < 0.5 * took:
            continue
        if _has_grown(case, spent):
            continue
        gain = case.gain(_earlier(np.broadcast_to(spent, own.shape)))
        most = case.sample.gain(_earlier(own))
        found.append(
            Finding(
                "work beside training",
                f"{who} spend{s} {milliseconds(took)} of each step ({100 * took / step:.0f} %) "
                f"{what}.",
                f"{action}: every hundredth step, for example, costs hardly anything.",
                gain,
                {"phase": name, "spent_ms": 1e3 * took, "spent_share": took / step},
                _around(0.8 * gain, gain, most),
            )
        )
    return found


def _saving(case: Case) -> str:
    """Where the time of checkpoints is spent: only PyTorch's saving marks itself."""
    return "in torch.save" if case.uses_torch else "on checkpoints"


def _all_recorded(case: Case) -> bool:
    return len(case.analysis.joint.views) == case.analysis.recording.size


def _who(case: Case) -> tuple[str, str]:
    """The subject of a sentence, and the ending of its verb."""
    return ("All ranks", "") if case.analysis.recording.size > 1 else ("The program", "s")


def _seconds(case: Case, names: list[str]) -> np.ndarray:
    """[ranks, S] s in these phases together; 0 if they were not recorded."""
    table = case.analysis.phases
    shape = len(case.analysis.joint.views), len(case.analysis.found_steps)
    if table.empty:
        return np.zeros(shape)
    known = [name for name in names if name in table.columns]
    values: np.ndarray = table[known].sum(axis=1).to_numpy(float).reshape(shape)
    return values


def _compute(case: Case) -> np.ndarray:
    shape = len(case.analysis.joint.views), len(case.analysis.found_steps)
    values: np.ndarray = case.analysis.waterfall["compute_s"].to_numpy(float).reshape(shape)
    return values


def _common(seconds: np.ndarray) -> np.ndarray:
    """[S] the time that all ranks have in common; a single rank's excess is its own fault."""
    least: np.ndarray = seconds.min(axis=0)
    return least


def _gradients(case: Case) -> tuple[float, float]:
    """Tensors and bytes that are reduced in a step, on average."""
    joint, of = case.analysis.joint, case.analysis.found_steps.batch_step
    inside = (of >= 0) & (joint.kind == 0)
    steps = max(len(case.analysis.found_steps), 1)
    return float(joint.tensors[inside].sum() / steps), float(joint.bytes[inside].sum() / steps)


def _crowd(case: Case) -> float:
    """Ranks per CPU, at least 1: the factor by which everything takes longer."""
    identities = [v.recording.identity for v in case.analysis.joint.views.values()]
    crowds = [one.local_size / one.cpus for one in identities if one.cpus and one.local_size]
    return max([1.0, *crowds])


def _around(least: float, gain: float, most: float) -> tuple[float, float]:
    """An interval around these, widened by the error of every expected gain."""
    low, high = min(least, gain), max(most, gain)
    off = RELATIVE * gain + ABSOLUTE
    return max(0.0, min(low, gain - off)), min(1.0, max(high + ABSOLUTE, gain + off))


def _earlier(seconds: np.ndarray, at_end: bool = False) -> changes.Change:
    """The change: each rank computes less in each step, by [ranks, S] s, before it submits
    anything, or after its last wait."""

    def change(one: Play) -> Play:
        less = 1e9 * seconds[:, one.step]
        own = tuple(_sooner(p, float(t), at_end) for p, t in zip(one.programs, less, strict=True))
        return replace(one, programs=own, work=_less_work(one, less))

    return changes.each_step(change)


def _sooner(program: Program, time: float, at_end: bool) -> Program:
    if at_end:
        last = max((at for at, _ in program.waits), default=0.0)
        return replace(program, compute=max(last, program.compute - time))
    waits = tuple((max(0.0, at - time), needs) for at, needs in program.waits)
    submit = np.maximum(program.submit - time, 0.0)
    return Program(submit, waits, max(0.0, program.compute - time))


def _less_work(one: Play, less: np.ndarray) -> tuple[tuple[float, float], ...]:
    """The CPU work that is left. All time without CPU use may have been in the removed time."""
    if len(one.cpu) != len(one.programs):
        return one.work
    rest = np.array([p.compute for p in one.programs]) - less
    gone = float(np.maximum(one.cpu - np.maximum(rest, 0.0), 0.0).sum() / max(one.cpu.sum(), 1.0))
    return tuple((computing * (1 - gone), batch) for computing, batch in one.work)


# ---- one rank ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """The phase in which ranks take longer; `sentence` and `action` may extend a finding's."""

    phase: str
    seconds: float
    sentence: str
    action: str


_ACTIONS = {
    INPUT: "See what it loads: its share of the data (longer, larger, other files), its disk or "
    "its loader's workers; load ahead (num_workers, prefetch_factor).",
    BEFORE: "See what it does between its update and its forward pass: loading its input, "
    "logging, saving; load ahead, and do the rest in the background.",
    BETWEEN: "See what it does after its update: logging, saving, measuring; do that in the "
    "background, or on all ranks in turn.",
    FORWARD: "See what it computes: longer sequences or a larger batch than the others', other "
    "programs on its CPUs, a lower clock.",
    BACKWARD: "See what it computes: longer sequences or a larger batch than the others', other "
    "programs on its CPUs, a lower clock.",
    UPDATE: "See what else its optimizer does: a schedule, a norm, a copy of the weights.",
    EVALUATION: "Evaluate on all ranks at the same time, each a share of the data, or less often.",
    CHECKPOINT: "Save in the background, smaller or less often: the others wait for it.",
}


def with_update(case: Case, chosen: np.ndarray, ranks: list[int]) -> np.ndarray:
    """The steps `chosen`, [S] bool, and those before them if their updates made `ranks` late: the
    others wait for an update in the step after it."""
    steps = case.analysis.found_steps.number
    if where(case.analysis, steps[chosen], ranks):
        return chosen
    before = np.append(chosen[1:], False)
    late = where(case.analysis, steps[before], ranks) == UPDATE
    return chosen | before if late else chosen


def told(case: Case, steps: np.ndarray, ranks: list[int]) -> Where | None:
    """The phase in which `ranks` take longer than the others in the steps with the numbers `steps`;
    None if no phase is known, or most of the excess is not in one phase."""
    name = where(case.analysis, steps, ranks)
    if not name and (before := steps[steps - 1 >= case.analysis.found_steps.number[0]] - 1).size:
        # The others wait for a step's update in the step after it.
        name, steps = where(case.analysis, before, ranks), before
        name = name if name == UPDATE else ""
    if not name:
        return None
    seconds = excess(case.analysis, steps, ranks)[name]
    if seconds < WORTH / 2 * float(np.median(case.durations)):
        return None
    their = "its" if len(ranks) == 1 else "their"
    they, s = ("it", "s") if len(ranks) == 1 else ("they", "")
    longer = milliseconds(seconds)
    clause = {
        INPUT: f"{their} input arrives {longer} later than the others'",
        BEFORE: f"{they} spend{s} {longer} more than the others before the forward pass (input, "
        "preparation, work after a step)",
        BETWEEN: f"{they} spend{s} {longer} more than the others between update and next input",
        FORWARD: f"{their} forward pass takes {longer} longer than the others'",
        BACKWARD: f"{their} backward pass takes {longer} longer than the others'",
        UPDATE: f"{their} optimizer's update takes {longer} longer than the others'",
        EVALUATION: f"{they} spend{s} {longer} more than the others on evaluation",
        CHECKPOINT: f"{they} spend{s} {longer} more than the others {_saving(case)}",
    }.get(name, f"{they} spend{s} {longer} more than the others in “{name}”")
    action = _ACTIONS.get(name, f"See what {they} do{'es' if s else ''} in “{name}”.")
    if not case.uses_torch:
        action = action.replace(" (num_workers, prefetch_factor)", "")
    if len(ranks) > 1:
        for one, many in ((" it loads", " they load"), (" it does", " they do"), ("its ", "their "),
                          (" it computes", " they compute")):  # fmt: skip
            action = action.replace(one, many)
    return Where(name, seconds, clause[:1].upper() + clause[1:] + ".", action)
