"""Causes of lost time in operations that are not allreduces of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from hvdtune.timeline import words
from hvdtune.timeline.advice import cpus
from hvdtune.timeline.evidence.case import Case, milliseconds
from hvdtune.timeline.evidence.finding import ABSOLUTE, Finding
from hvdtune.timeline.replay import calls
from hvdtune.timeline.structure.owners import BEFORE, BEHIND, OF_MODEL, UPDATED, Family

#: This many small tensors, each waited for on its own, are a loop over metrics.
LOOP = 4
SMALL = 64 << 10
#: A few small operations right after the gradients are reported from this gain on: the update has
#: moved the ranks apart, and a rank that waits in one of these does not wait in the next.
FEW_WORTH = 0.05
#: Operations that belong to the model are not mistakes; they are reported from this gain on.
MODEL_WORTH = 0.1
#: Leaving out many calls probably saves more than computed: the interpreter's time between calls is
#: known, but not the time that they take from the ranks' computing.
MORE = 1.4

_VERBS = {
    "broadcast": "broadcasts",
    "broadcast_object": "pickles and broadcasts",
    "allgather": "gathers",
    "allgather_object": "pickles and gathers",
    "allreduce": "averages",
    "grouped_allreduce": "averages",
    "alltoall": "exchanges",
    "reducescatter": "scatters",
}
_ONCE = (
    "once before the loop, or only when it has changed; if each rank can make or read it itself, "
    "let it do so."
)
_LESS = "Send less in it, or call it in fewer steps, if the model allows that."
_ACTIONS = {
    "broadcast": f"Broadcast it {_ONCE}",
    "broadcast_object": f"Call broadcast_object {_ONCE}",
    "allgather": "Gather it at the end of an epoch or every N steps, or use hvd.allreduce if you "
    "need only a sum or mean.",
    "allgather_object": "Gather objects at the end of an epoch or every N steps; send numbers as "
    "one tensor (hvd.allgather), which is faster because it is not pickled.",
    "alltoall": _LESS,
    "reducescatter": _LESS,
    "barrier": "Remove hvd.barrier(): the gradients keep the ranks together; for timings, one "
    "before the first step and one after the last are enough.",
}
#: The same for programs whose face has calls that return before the operation is done.
_WITH_HANDLES = {
    "allgather": "Gather it at the end of an epoch or every N steps, or use hvd.allreduce if you "
    "need only a sum or mean; if the model needs it in every step, submit it with "
    "hvd.allgather_async and synchronize it where the result is used.",
    "alltoall": "Submit it with hvd.alltoall_async as soon as its input is ready, and synchronize "
    "it where the result is used.",
    "reducescatter": "Submit it with hvd.reducescatter_async as soon as its input is ready, and "
    "synchronize it where the result is used.",
}
_KINDS = {
    "broadcast_object": "object operations in every step",
    "allgather_object": "object operations in every step",
    "allreduce": "blocking allreduce in every step",
    "grouped_allreduce": "blocking allreduce in every step",
}


def owned(case: Case) -> list[Finding]:
    """The cost of operations other than the gradients', by family; small tensors that are reduced
    one after the other are one finding."""
    others = [one for one in case.analysis.owners if one.waited_for]
    loops: dict[tuple[int, str], list[Family]] = {}
    for one in others:
        if one.call == "allreduce" and one.alone and one.bytes <= SMALL * one.count:
            loops.setdefault((one.process_set, one.phase), []).append(one)
    found = []
    for together in loops.values():
        if sum(one.count for one in together) >= LOOP:
            found.append(_one_by_one(case, together))
            others = [one for one in others if one not in together]
    return found + [told for one in others for told in _in_every_step(case, one)]


def _one_by_one(case: Case, together: Sequence[Family]) -> Finding:
    """A loop of small allreduces."""
    names = tuple(at for one in together for at in one.names)
    count = sum(one.count for one in together)
    size = sum(one.bytes for one in together) / count
    gain = case.gain(calls.in_one_call(names, case.load.hosts)) if names else 0.0
    gain += sum(_unplayed(case, one) for one in together if not one.names) * (1 - 1 / count)
    gain *= 1 - cpus.starved(case)
    blocked = sum(one.blocked_s for one in together)
    what = ", ".join(_called(one) for one in together[:3])
    return Finding(
        "metrics one by one",
        f"{count:.0f} times a step, {together[0].phase or 'in the step'}, the program waits for "
        f"one small tensor{_of_set(case, together[0])} (typically {words.size(size)}: {what}) "
        f"before it submits the next; ranks are blocked by it for {milliseconds(blocked)} a step.",
        "Put the numbers into one tensor and reduce that, or use hvd.grouped_allreduce(tensors). "
        "Reduce metrics that nobody reads in every step only at the end of an epoch.",
        gain,
        {
            "tensors_per_step": count,
            "blocked_ms": 1e3 * blocked,
            "replay_error": case.replay_error(case.sample),
        },
        between=_between(gain),
    )


def _between(gain: float) -> tuple[float, float] | None:
    """See MORE."""
    if not gain > 0:
        return None
    return max(0.0, gain / MORE - ABSOLUTE), min(1.0, MORE * gain + ABSOLUTE)


def _in_every_step(case: Case, one: Family) -> list[Finding]:
    """One family that occurs in every step."""
    gain = _played(case, one) if one.names else _unplayed(case, one)
    few = one.bytes <= SMALL and one.count < LOOP and one.phase in (UPDATED, BEHIND)
    if few:
        gain = min(gain, (one.blocked_s - one.late_s) / float(case.durations.mean()))
    gain *= 1 - cpus.starved(case)
    least = MODEL_WORTH if one.call == OF_MODEL else FEW_WORTH if few else 0.0
    if gain < least:
        return []
    if one.names:
        case.fixes.append((gain, calls.left_out(one.names)))
    evidence: dict[str, float | str] = {
        "operation": one.call,
        "tensor": one.name or "-",
        "process_set": float(one.process_set),
        "bytes": one.bytes,
        "operations_per_step": one.count,
        "blocked_ms": 1e3 * one.blocked_s,
        "late_ms": 1e3 * one.late_s,
        "phase": one.phase or "-",
        "replay_error": case.replay_error(case.sample),
    }
    if late := _made_late(case, one):
        evidence["late_ranks"] = ", ".join(map(str, late))
    kind = _KINDS.get(one.call, f"{one.call} in every step")
    return [Finding(kind, _sentence(case, one), _action(case, one), gain, evidence)]


def _played(case: Case, one: Family) -> float:
    """The gain of leaving out the family and its pickling."""
    names = case.analysis.joint.reference.recording.names
    pickled = calls.Pickling(case.analysis.joint, case.analysis.found_steps)
    counters = calls.pickling_of([names[at].name for at in one.names])
    return case.sample.gain(
        calls.left_out(one.names, case.load.hosts, lambda step: pickled.spans(counters, step))
    )


def _unplayed(case: Case, one: Family) -> float:
    """The gain of leaving out a family without the rank whose steps are replayed: the time that the
    other ranks wait for its members, unless they are busy elsewhere for as long."""
    members = case.members(one)
    if not case.late_by_operations(members):
        return 0.0
    others = [busy for rank, busy in case.elsewhere.items() if rank not in members]
    own = max(0.0, one.blocked_s - one.late_s - max(others, default=0.0))
    return min(own, case.delay_by(members)) / float(case.durations.mean())


def _made_late(case: Case, one: Family) -> list[int]:
    """The ranks of its process set, if it makes them late and the others wait for them."""
    members = case.members(one) if one.process_set else []
    most = max((case.elsewhere.get(rank, 0.0) for rank in members), default=0.0)
    explains = one.blocked_s - one.late_s >= most / 2 > 0
    return members if explains and case.late_by_operations(members) else []


def _sentence(case: Case, one: Family) -> str:
    where = f", {one.phase}" if one.phase else ""
    blocked = f"ranks are blocked in it for {milliseconds(one.blocked_s)} a step"
    if one.late_s >= 0.1 * one.blocked_s > 0:
        blocked += f", {milliseconds(one.late_s)} of that waiting for late ranks"
    if one.call == OF_MODEL:
        return (
            f"SyncBatchNorm's own operations, {one.count:.0f} a step, belong to the model and are "
            f"not a mistake; {blocked}."
        )
    if one.call == "barrier":
        times = "" if one.count < 1.5 else f" {one.count:.0f} times"
        return (
            f"The program calls hvd.barrier(){_of_set(case, one)}{times} in every step{where}; "
            f"{blocked}."
        )
    objects = one.count / (2 if one.call.endswith("_object") else 1)
    times = "" if objects < 1.5 else f" ({objects:.0f} operations)"
    waits = "waits for it" if one.alone else "needs the result"
    return (
        f"The program {_VERBS.get(one.call, one.call)} {_called(one)}"
        f"{_of_set(case, one)}{times} in every step, {words.size(one.bytes)}{where}, and {waits}; "
        f"{blocked}{_meanwhile(case, one)}."
    )


def _meanwhile(case: Case, one: Family) -> str:
    """The ranks that wait for those of a process set meanwhile."""
    late = _made_late(case, one)
    others = [rank for rank in case.analysis.joint.views if rank not in late]
    if not late or not others:
        return ""
    wait = "wait" if len(others) > 1 else "waits"
    return f"; meanwhile {words.ranks(others)} {wait} for {words.ranks(late)}"


def _called(one: Family) -> str:
    """The name or line by which a reader finds the operation in the program."""
    if one.name:
        return one.name
    return f"a tensor without a name ({one.site})" if one.site else "a tensor without a name"


def _action(case: Case, one: Family) -> str:
    if one.call == OF_MODEL:
        return (
            "Nothing, if the model needs it. If each rank's batch is large enough for statistics "
            "of its own, use torch.nn.BatchNorm, which does not communicate."
        )
    if one.call.endswith("allreduce"):
        ahead = ", or submit it with hvd.allreduce_async and hvd.synchronize it after the update"
        ahead = ahead if case.has_handles else ""
        if one.phase == BEFORE:
            return (
                "Ranks wait for each other twice a step, here and for the gradients: average it "
                f"after the update instead, every N steps or at the end of an epoch{ahead}."
            )
        together = ", together with the gradients" if ahead else ""
        return f"Average it every N steps or at the end of an epoch{ahead}{together}."
    actions = {**_ACTIONS, **_WITH_HANDLES} if case.has_handles else _ACTIONS
    return actions.get(one.call, "Do it every N steps, or once before the loop.")


def _of_set(case: Case, one: Family) -> str:
    """` of process set 2 (ranks 0, 2)`; "" for the one of all ranks."""
    if one.process_set == 0:
        return ""
    return f" of process set {one.process_set} ({words.ranks(case.members(one))})"
