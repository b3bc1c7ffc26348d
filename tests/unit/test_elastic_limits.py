"""Limits of an elastic job: what contradicts, and the most that there can be."""

from __future__ import annotations

import pytest

from hvdtune import _native
from hvdtune.launch.elastic import job
from hvdtune.launch.elastic.limits import MOST_PROCESSES, Limits
from hvdtune.launch.errors import LaunchError


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((2, 0), ["--min-np 0", "1 or more"]),
        ((2, 3), ["-np 2", "--min-np 3"]),
        ((4, 2, 3), ["--max-np 3", "4 processes"]),
        ((4, 2, None, -1), ["--reset-limit -1"]),
        ((2000, 2), ["2000", "1024"]),
        ((2, 2, 2000), ["2000", "1024"]),
    ],
)
def test_limits_that_contradict_each_other(limits, words):
    with pytest.raises(LaunchError) as caught:
        Limits(*limits).check()
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(("spares", "words"), [(-1, "--spares -1"), (1, "--max-np")])
def test_spares_need_a_most(spares, words):
    with pytest.raises(LaunchError, match=words):
        Limits(2, 2, spares=spares).check()


def test_the_most_processes_are_those_the_engine_connects():
    assert MOST_PROCESSES == _native.MAX_RANKS


@pytest.mark.parametrize(
    ("limits", "most"),
    [(Limits(2, 2), MOST_PROCESSES), (Limits(2, 2, 300), 300), (Limits(2, 2, 300, spares=9), 309)],
)
@pytest.mark.parametrize(("folder", "each"), [(None, 4), ("out", 6)])
def test_the_driver_may_open_files_for_all_processes(limits, most, folder, each):
    """On each of as many hosts: its connection, the pipes of ssh, perhaps files of output."""
    spec = job.ElasticSpec(["true"], {}, limits, output_directory=folder)
    assert job._most_files(spec) == each * most
