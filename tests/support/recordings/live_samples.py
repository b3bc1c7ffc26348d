"""A job's status as the engine writes it, for tests of what is made of it."""

from __future__ import annotations

import copy
from typing import Any

_STATUS: dict[str, Any] = {
    "job": "1f2e3d",
    "program": "train.py",
    "size": 3,
    "launcher": "hvdtune",
    "pid": 4711,
    "uptime_s": 200.0,
    "steps": 500,
    "step_s": 0.25,
    "start_s": 12.5,
    "one_time_s": 0.0,
    "last_step_ago_s": 0.1,
    "step_bytes": 100_000_000,
    "step_tensors": 160,
    "step_batches": 4,
    "exposed_share": 0.4,
    "queue": 7,
    "queue_for_ranks": 5,
    "batches": 2000,
    "bytes": 50_000_000_000,
    "straggler": None,
    "straggler_host": None,
    "stall_reports": 0,
    "stalled_tensors": 0,
    "lateness": [
        {"late_s": 0.0, "share": 0.0, "last_share": 0.1, "chance": 1.0},
        {"late_s": 0.03, "share": 0.12, "last_share": 0.8, "chance": 1e-9},
        {"late_s": 0.001, "share": 0.004, "last_share": 0.1, "chance": 1.0},
    ],
    "hosts": [
        {"ranks": [0, 1], "late_s": 0.0, "share": 0.0, "last_share": 0.0},
        {"ranks": [2], "late_s": 0.0, "share": 0.0, "last_share": 0.0},
    ],
    "notes": {},
    "epoch": 2,
    "settings": {
        "fusion_threshold": 64_000_000,
        "cycle_time_us": 1500,
        "chunk_size": 0,
        "one_shot_limit": 0,
    },
    "ranks": [{"host": "a", "pid": 4711}, {"host": "a", "pid": 4712}, {"host": "b", "pid": 99}],
}


def sample_status(**changes: Any) -> dict[str, Any]:
    """A job in the middle of its training, with `changes` by key."""
    return {**copy.deepcopy(_STATUS), **changes}


def status_at_start() -> dict[str, Any]:
    """A job that has done nothing yet: what is not known is None."""
    return sample_status(
        steps=0,
        step_s=None,
        start_s=None,
        last_step_ago_s=None,
        step_bytes=0,
        step_tensors=0,
        step_batches=0,
        exposed_share=None,
        bytes=0,
        batches=0,
        lateness=[{"late_s": 0.0, "share": 0.0, "last_share": 0.0}] * 3,
    )
