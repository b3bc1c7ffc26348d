"""What timelines in Horovod's layout say."""

from __future__ import annotations

import json
from pathlib import Path


def carried_by(path: Path) -> dict[str, str]:
    """What has carried each tensor on GPUs, by the name of its row: "NCCL_ALLREDUCE", say."""
    events = json.loads(path.read_text())
    rows = [event for event in events if event.get("name") == "process_name" and event["pid"] > 0]
    names = {row["pid"]: row["args"]["name"] for row in rows}
    found = {}
    for event in events:
        way = event.get("name", "")
        if event["ph"] == "B" and way.startswith(("NCCL_", "IPC_")):
            found[names[event["pid"]]] = way
    return found
