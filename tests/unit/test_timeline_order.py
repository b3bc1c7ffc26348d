"""Ranks that submit the same tensors in different orders are told; near-ties are not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, Late, recording, step_seconds, tensors

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding

HEALTHY = Job(steps=40, noise=0.01, speed=1e9)
IN_ORDER = tuple(range(20))


@cache
def verdict(job: Job) -> list[Finding]:
    return findings(analyse(recording(job)))


def shuffled(ranks: int, count: int = 20) -> tuple[tuple[int, ...], ...]:
    random = np.random.default_rng(ranks)
    return tuple(tuple(random.permutation(count).tolist()) for _ in range(ranks))


def exchanged(distance: int) -> tuple[int, ...]:
    """IN_ORDER with neighbours at that distance exchanged."""
    blocks = np.arange(20).reshape(-1, 2, distance)
    return tuple(blocks[:, ::-1].ravel().tolist())


TOLD = {
    "one rank goes backwards": replace(HEALTHY, orders=(IN_ORDER,) * 3 + (IN_ORDER[::-1],)),
    "each rank has its own order": replace(HEALTHY, orders=shuffled(4)),
    "of two ranks one goes backwards": replace(HEALTHY, ranks=2, orders=(IN_ORDER, IN_ORDER[::-1])),
    "halves are exchanged": replace(HEALTHY, orders=(IN_ORDER, exchanged(10)) * 2),
}


@pytest.mark.parametrize("name", TOLD)
def test_orders_that_differ_are_told_first_with_what_one_order_gives(name):
    job = TOLD[name]
    found = verdict(job)
    assert found[0].kind == "orders differ"
    true = 1 - step_seconds(replace(job, orders=())) / step_seconds(job)
    assert found[0].gain == pytest.approx(true, rel=0.15)
    assert "on rank" in found[0].sentence


NOT_TOLD = {
    "one order": HEALTHY,
    "one order, which is no usual one": replace(HEALTHY, orders=(shuffled(1)[0],) * 4),
    "neighbours exchanged, at once": replace(
        HEALTHY, backward=0.0002, orders=(IN_ORDER, exchanged(1)) * 2
    ),
    "all at once": replace(HEALTHY, overlap=False, orders=shuffled(4)),
    "communication that costs nothing": replace(
        HEALTHY, tensors=tensors(20, 1024), orders=shuffled(4)
    ),
    "a slow rank": replace(HEALTHY, late=(Late(2, 0.03),)),
    "uneven": replace(HEALTHY, noise=0.3),
}


@pytest.mark.parametrize("name", NOT_TOLD)
def test_other_jobs_have_one_order(name):
    assert "orders differ" not in {one.kind for one in verdict(NOT_TOLD[name])}
