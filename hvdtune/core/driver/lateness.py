"""On whom the ranks of a job wait, of the job's status, as rank 0 tells its driver."""

from __future__ import annotations

import json
from typing import Any


def of_status(text: str) -> dict[str, Any]:
    """The fields of a message `lateness`, from `Engine.status()` of rank 0.

    "ranks" are those that the engine names as late now: one, or all of a host, or none. The means
    over the last 40 steps: "late_s", seconds of a step that the others wait for them; "share", of
    the steps' time; "last_share", of these steps, how many they were the last in. "steps": of this
    generation, so far; "step_s": seconds that one takes.
    """
    status = json.loads(text)
    rank, host = status.get("straggler"), status.get("straggler_host")
    late: dict[str, Any] = {"ranks": []}
    if host is not None:
        late = status["hosts"][host]
    elif rank is not None:
        late = {"ranks": [rank], **status["lateness"][rank]}
    return {
        "ranks": late["ranks"],
        **{name: late.get(name, 0.0) for name in ("late_s", "share", "last_share")},
        "steps": status.get("steps", 0),
        "step_s": status.get("step_s") or 0.0,
    }
