"""What a rank's delay is told with: its pattern, its share of the time, and numbers that fit."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.recordings.synthetic_capture import Job, Late, Stall, recording, step_seconds

from hvdtune.timeline.advice.verdict import findings
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.evidence.finding import Finding

HEALTHY = Job(steps=60, noise=0.01)
RANDOM = np.random.default_rng(4).choice(np.arange(3, 60), 12, replace=False).tolist()


@cache
def verdict(job: Job) -> Finding:
    return findings(analyse(recording(job)))[0]


def late(rank: int, seconds: float, steps: list[int]) -> tuple[Late, ...]:
    return tuple(Late(rank, seconds, step, step) for step in steps)


PATTERNS = {
    "always": (replace(HEALTHY, late=(Late(2, 0.03),)), 0.03 / 0.063),
    "periodic": (replace(HEALTHY, late=late(1, 0.1, list(range(10, 60, 10)))), 0.5 / 2.48),
    "random": (replace(HEALTHY, late=late(1, 0.1, RANDOM)), 1.2 / 3.15),
    "interval": (replace(HEALTHY, late=(Late(1, 0.03, 30, 44),)), 0.45 / 2.4),
    "once": (replace(HEALTHY, stall=Stall(3, 30, 2.0)), 2.0 / 3.95),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_rank_is_blamed_with_the_pattern_and_the_share_of_its_delay(pattern):
    job, share = PATTERNS[pattern]
    found = verdict(job)
    assert found.evidence["pattern"] == pattern
    assert found.evidence["delay_share"] == pytest.approx(share, rel=0.1)


def test_numbers_in_the_sentence_explain_the_share():
    job = replace(HEALTHY, noise=0.2, late=(Late(1, 0.010),))
    found = verdict(job)
    steps, ms, share = re.search(  # type: ignore[union-attr]
        r"in (\d+) % of the steps, by ([\d.]+) ms on average: (\d+) % of the time", found.sentence
    ).groups()
    analysis = analyse(recording(job))
    mean_ms = 1e3 * float(analysis.steps["duration_s"].mean())
    assert float(steps) * float(ms) / mean_ms == pytest.approx(float(share), abs=1)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_late_in_turn_are_told_in_their_order(ranks):
    turns = tuple(Late((step * 1) % ranks, 0.02, step, step) for step in range(1, 81))
    found = verdict(Job(ranks=ranks, steps=80, noise=0.02, late=turns))
    assert found.kind == "ranks take turns"
    assert found.evidence["pattern"] == "alternating"
    order = ", ".join(map(str, range(1, ranks)))
    assert "late in turn, by 2" in found.sentence
    assert f"first rank 0, then rank {order}, and again" in found.sentence


def test_jitter_is_told_with_its_size():
    found = verdict(replace(HEALTHY, noise=0.3))
    assert found.kind == "ranks take turns"
    assert found.evidence["pattern"] == "random"
    assert found.evidence["spread_ms"] == pytest.approx(0.3 * 30 * np.sqrt(3 / 4), rel=0.1)
    assert "(standard deviation)" in found.sentence


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_pauses_of_another_rank_each_time_are_told_and_nobodys(ranks):
    random = np.random.default_rng(ranks)
    steps = sorted(random.choice(np.arange(3, 81), 14, replace=False).tolist())
    seconds = random.uniform(0.1, 0.7, 14)
    own = tuple(Late(at % ranks, float(seconds[at]), step, step) for at, step in enumerate(steps))
    job = Job(ranks=ranks, steps=80, noise=0.01, late=own)
    found = verdict(job)
    assert found.kind == "ranks pause in turn"
    assert found.evidence["pattern"] == "random"
    true = 1 - step_seconds(replace(job, late=())) / step_seconds(job)
    assert found.gain == pytest.approx(true, rel=0.12)
    every = findings(analyse(recording(job)))
    assert not [one.kind for one in every if "straggler" in one.kind or "stalled" in one.kind]
