"""Whatever happens: random histories of an elastic job, on the model of `elastic_world`."""

from __future__ import annotations

import random

import pytest
from elastic_world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tiers import EVERY

from hvdtune.launch.elastic.limits import Limits

QUIETLY = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@st.composite
def fates(draw):
    """Limits, a cool-down, a number of events, and a seed for what they are."""
    least = draw(st.integers(1, 4))
    processes = least + draw(st.integers(0, 3))
    most = draw(st.one_of(st.none(), st.integers(processes, processes + 4)))
    limits = Limits(
        processes,
        least,
        most,
        resets=draw(st.sampled_from([None, None, None, 0, 1, 3])),
        elastic_timeout=draw(st.sampled_from([20.0, 60.0])),
        start_timeout=draw(st.sampled_from([5.0, 15.0])),
        spares=draw(st.integers(0, 2)) if most else 0,
        replaces_failed=draw(st.booleans()),
        straggler_seconds=draw(st.sampled_from([None, 5.0])),
    )
    cooldown = draw(st.sampled_from([None, (1, 2), (2, 20)]))
    return limits, cooldown, draw(st.integers(0, 200)), draw(st.integers(0, 2**32))


def live(fate) -> None:
    limits, cooldown, steps, seed = fate
    world = World(random.Random(seed), limits, cooldown)
    try:
        for _ in range(steps):
            if world.end is None:
                world.step()
        world.calm_down()
    except Exception:
        print(limits, cooldown, "\n".join(world.log), sep="\n")
        raise


@settings(QUIETLY, max_examples=150, derandomize=True)
@given(fates())
def test_any_history(fate):
    live(fate)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(QUIETLY, max_examples=100_000 if EVERY else 1_500)
@given(fates())
def test_many_histories(fate):
    live(fate)
