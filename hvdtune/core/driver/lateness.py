"""The ranks that the others wait for, from the job's status, as rank 0 reports them."""

from __future__ import annotations

import json
from typing import Any


def of_status(text: str) -> dict[str, Any]:
    """The fields of a message `lateness`, from `Engine.status()` of rank 0.

    "ranks" are those that the engine names as late now: one, or all of a host, or none. The other
    fields are means over the last 40 steps: "late_s", seconds per step that the others wait for
    them; "share", of the steps' time; "last_share", the share of these steps in which they were
    last. "steps": of this generation, so far; "step_s": seconds per step.
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
