"""Rank 0's answers to this user's other processes: `hvdtune top`, `stacks`, `timeline start|stop`.

The engine answers by itself, on a native thread, what it can, also while Python is busy
(`Engine.serve`). Other requests come here, on that thread, once it has the interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from hvdtune.core import world
from hvdtune.core.driver import member
from hvdtune.core.observation import recording

if TYPE_CHECKING:
    import hvdtune._native as _native
    from hvdtune.core.topology import Topology


def serve(engine: _native.Engine, topology: Topology) -> None:
    """On rank 0, start to accept requests."""
    if topology.rank != 0:
        return
    number = os.urandom(4).hex()  # process ids are not unique between containers
    identity = {
        "job": topology.job_id,
        "program": _program() or "python",
        "size": topology.size,
        "launcher": topology.launcher,
        "pid": os.getpid(),
        "started": time.time(),
        **({"elastic": member.job()} if member.job() else {}),
    }
    inside = json.dumps(identity, ensure_ascii=False).strip()[1:-1]
    engine.serve(f"hvdtune-control/{os.getuid()}/{os.getpid()}/{number}", inside, answer)


def _program() -> str:
    """The script's name as text that can be sent: file names need not be Unicode."""
    return os.path.basename(sys.argv[0]).encode("utf-8", "replace").decode()


def answer(question: str) -> str:
    """Carry out a request; return a sentence about it. Raises ValueError if that is impossible.

    The engine passes on requests that begin with "timeline-" (`Engine::serve`), and answers the
    rest.
    """
    verb, _, rest = question.partition(" ")
    if verb == "timeline-start":
        asked = json.loads(rest)
        path = str(asked["path"])
        problem = recording.begin_timeline(path, bool(asked.get("mark_cycles", False)))
        if problem:
            raise ValueError(f"{problem}; nothing is recorded")
        file = world.engine().recorded_file() or path  # another one, if `path` is in use
        return f"recording to {recording.files(file, world.settings(), world.size())}"
    if verb == "timeline-stop":
        file = world.engine().recorded_file()
        recording.stop_timeline()
        if not file:
            return "no recording was under way"
        return f"recorded to {recording.files(file, world.settings(), world.size())}"
    raise ValueError(f"this job does not know {verb!r}: it runs another version of hvdtune")
