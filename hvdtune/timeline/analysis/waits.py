"""Whether a recording shows when the program waits; if not, for how long it may have waited.

A wait is recorded if the engine blocks a thread of the program. TensorFlow's graphs and MXNet's
engine start operations and go on when the engine calls back: what waits for a result meanwhile is
known only to them. With ASYNC, it is a GPU that waits. Definitions: docs/metrics.md.
"""

from __future__ import annotations

import numpy as np

from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.structure.joint import Joint, View
from hvdtune.timeline.structure.steps import Steps

#: Faces that start operations in that way. Keras runs on one that the recording names as well.
UNSEEN = frozenset({"tensorflow", "mxnet", "keras"})
#: They also have calls that wait in the engine: eager ones of TensorFlow, and those in functions
#: that XLA compiles. Waits are known if they are recorded at the ends of batches with this share of
#: all batches' running time, …
WAITED_FOR = 0.5
#: … and in this share of the steps. If the face is unknown, only the latter is asked.
IN_STEPS = 0.1
#: The setting with which an operation on a GPU is done for the engine when it is enqueued.
ASYNC = "HOROVOD_ENABLE_ASYNC_COMPLETION"


def shown(joint: Joint, steps: Steps) -> bool:
    """Whether the recording shows when the program waits in its steps. It does if there is nothing
    to wait for: one rank, or no batch in a step. It also does if the program's face always waits in
    the engine: an operation that it has not waited for was done by then."""
    inside = steps.batch_step >= 0
    if joint.recording.size < 2 or not inside.any():
        return True
    views = joint.views.values()
    faces = frozenset[str]().union(*(view.recording.identity.faces for view in views))
    on_gpus = ends_on_gpus(joint.recording)
    if faces and not faces <= UNSEEN and not on_gpus:
        return True
    busy = np.unique(steps.batch_step[inside])
    blocked = [
        (view.blocked.until(steps.end[rank]) - view.blocked.until(steps.begin[rank]))[busy] > 0
        for rank, view in joint.views.items()
    ]
    if np.mean(blocked) < IN_STEPS:
        return False
    if not faces and not on_gpus:
        return True
    ended: list[np.ndarray] = []
    ran: list[np.ndarray] = []
    for view in views:
        of = view.present & inside
        ended.append(view.blocked.at(view.end[of]) >= 0)
        ran.append(np.maximum(view.end[of] - view.begin[of], 1))
    share = np.average(np.concatenate(ended), weights=np.concatenate(ran))
    return bool(share >= WAITED_FOR)


def ends_on_gpus(recording: Recording) -> bool:
    """Whether operations on GPUs are done for the engine before the GPU has done them: the setting
    ASYNC is on."""
    settings = [one.identity.settings.get(ASYNC) for one in recording.ranks.values()]
    return any(str(value).lower() in ("1", "true") for value in settings)


def at_most(
    joint: Joint, view: View, steps: Steps, ranks: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """How long a rank waited if it waited whenever an operation was under way, from its own
    submission until the end: for each late rank, [S, ranks], and in all, [S]; ns. `ranks`: all that
    may be late, in ascending order.

    Batches are under way together if one is submitted before the one before has ended. Of these,
    the one that was held up longest counts, for the rank that submitted it last. A batch is held up
    if that rank came after the end of the batch before.
    """
    charges, waited = np.zeros((len(steps), len(ranks))), np.zeros(len(steps))
    chosen = np.flatnonzero(view.present & (view.last_own > 0) & (steps.batch_step >= 0))
    if not len(chosen):
        return charges, waited
    chosen = chosen[np.argsort(view.begin[chosen], kind="stable")]
    step, own = steps.batch_step[chosen], view.last_own[chosen]
    end = np.maximum.accumulate(view.end[chosen])
    before = np.append(0, end[:-1])
    begins = np.minimum.accumulate(own[::-1])[::-1]  # of what is submitted from here on
    starts = (begins > before) | (np.diff(step, prepend=-1) != 0)
    first, together = np.flatnonzero(starts), np.cumsum(starts) - 1
    final = np.append(first[1:] - 1, len(chosen) - 1)
    lasted = end[final] - np.maximum(begins[first], before[first])
    np.add.at(waited, step[first], np.maximum(lasted, 0))
    held_up = (joint.last_rank[chosen] >= 0) & (joint.last[chosen] > before)
    late = np.where(held_up, joint.last[chosen] - own, 0)
    most = np.maximum.reduceat(late, first)[together]
    longest = np.flatnonzero((late == most) & (late > 0))
    longest = longest[np.unique(together[longest], return_index=True)[1]]
    who = np.searchsorted(ranks, joint.last_rank[chosen[longest]])
    np.add.at(charges, (step[longest], who), late[longest])
    return charges, waited
