"""Ranks whose clocks really differ: containers can have a CLOCK_MONOTONIC of their own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from rank_programs import capture
from support.jobs.ranks import start_ranks

from hvdtune.timeline.record.clock import LARGEST_BOUND_NS
from hvdtune.timeline.record.load import read_recording

#: By so much rank 1's clock is ahead of rank 0's, exactly: the kernel adds it.
AHEAD_S = 1000
AHEAD_NS = AHEAD_S * 10**9


def other_clock(seconds: int) -> list[str]:
    """The command that runs another one in such a time namespace, or skips the test."""
    if shutil.which("unshare") is None:
        pytest.skip("needs the command unshare, of util-linux")
    command = ["unshare", "-T", "--monotonic", str(seconds)]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot make a time namespace: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("hosts", [None, [1, 1]], ids=["containers", "hosts"])
@pytest.mark.parametrize("ahead", [AHEAD_S, -AHEAD_S])
def test_ranks_with_clocks_of_their_own_line_up(
    tmp_path: Path, ahead: int, hosts: list[int] | None
) -> None:
    # As seen from the first clock that was booted with: it must not become negative.
    shifted = 1 if ahead > 0 else 0
    command = other_clock(AHEAD_S)
    path = tmp_path / "t.json"
    with start_ranks(
        2, capture.patiently, 6,
        env={"HOROVOD_TIMELINE": str(path), "HOROVOD_STALL_CHECK_TIME_SECONDS": "60"},
        prefix=lambda rank: command if rank == shifted else (), hosts=hosts,
    ) as ranks:  # fmt: skip
        result = ranks.wait()
    recording = read_recording(path)
    assert sorted(recording.ranks) == [0, 1], recording.problems
    assert recording.problems == []
    bound = recording.clock_bound_ns
    assert 0 < bound <= LARGEST_BOUND_NS

    # The readings, against the truth.
    offset = -ahead * 10**9  # rank 0's clock minus rank 1's
    readings = recording.ranks[1].clock
    assert readings
    for one in readings:
        assert abs(one.offset_ns - offset) <= one.bound_ns

    # What the program itself has seen, put on rank 0's clock.
    begin, end = result.values[1]
    submitted = recording.ranks[1].tensors["submitted"]
    names = np.array([name.name for name in recording.ranks[1].names])
    submitted = submitted[names[recording.ranks[1].tensors["name"]] != "barrier.noname"]
    assert len(submitted) == 6 * len(capture.NAMES)
    assert submitted.min() >= begin + offset - bound
    assert submitted.max() <= end + offset + bound

    # No rank is through with an allreduce before the other has begun it.
    serials = [one.batches["serial"] for one in recording.ranks.values()]
    assert np.array_equal(serials[0], serials[1])
    first, second = (one.batches for one in recording.ranks.values())
    assert (first["end"] >= second["begin"] - bound).all()
    assert (second["end"] >= first["begin"] - bound).all()

    # Nor was anybody taken for stalled or late by 1000 s.
    for rank in (0, 1):
        assert "stall" not in result[rank].stderr.lower()
    # What rank 1 announces gets rank 0's time: a batch is closed within a cycle, not in 1000 s.
    batches = recording.ranks[0].batches
    assert (batches["first_ready"] <= batches["scheduled"]).all()


#: What a host's calendar says: CLOCK_REALTIME alone, which no namespace of the kernel's has.
OTHER_CALENDAR = """
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
extern "C" int clock_gettime(clockid_t which, timespec* now) noexcept {
  using Call = int(clockid_t, timespec*);
  static auto* const call = reinterpret_cast<Call*>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = call(which, now);
  if (which == CLOCK_REALTIME) now->tv_sec += AHEAD;
  return result;
}
extern "C" time_t time(time_t* result) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}
extern "C" int gettimeofday(timeval* result, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *result = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}
"""
YEARS_S = 20 * 365 * 86400


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
@pytest.mark.parametrize("ahead", [YEARS_S, -YEARS_S])
def test_hosts_whose_calendars_are_years_apart(tmp_path: Path, ahead: int) -> None:
    """Nothing looks at them: the job is as any other, and so is its recording."""
    source, library = tmp_path / "calendar.cc", tmp_path / "calendar.so"
    source.write_text(OTHER_CALENDAR.replace("AHEAD", str(ahead)))
    command = ["c++", "-std=c++20", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    path = tmp_path / "t.json"
    with start_ranks(
        2, capture.patiently, 6, hosts=[1, 1],
        env={"HOROVOD_TIMELINE": str(path), "HOROVOD_STALL_CHECK_TIME_SECONDS": "60"},
        prefix=lambda rank: ["env", f"LD_PRELOAD={library}"] if rank == 1 else (),
    ) as ranks:  # fmt: skip
        result = ranks.wait()
    recording = read_recording(path)
    assert sorted(recording.ranks) == [0, 1], recording.problems
    assert recording.problems == []
    assert 0 < recording.clock_bound_ns <= LARGEST_BOUND_NS
    first, second = (one.batches for one in recording.ranks.values())
    assert len(first) > 0
    assert (first["end"] >= second["begin"] - recording.clock_bound_ns).all()
    assert (second["end"] >= first["begin"] - recording.clock_bound_ns).all()
    for rank in (0, 1):
        assert "stall" not in result[rank].stderr.lower()
