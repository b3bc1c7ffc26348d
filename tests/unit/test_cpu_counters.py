"""What is read of threads and CPUs while a rank records."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hvdtune.live import cpu_counters
from hvdtune.timeline.record.host_counters import COUNTERS


class Kernel:
    """What a kernel shows of this process, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 100.0
        self.write("proc/self/cgroup", "0::/job/step\n")
        self.write("cgroup/job/cpu.max", "150000 100000\n")
        self.write("cgroup/job/step/cpu.max", "max 100000\n")
        self.cpus = sorted(os.sched_getaffinity(0))
        self.counts(run=0, wait=0, busy=0, stolen=0, throttled=0, pressure=0, used=0)

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def counts(
        self, *, run: float, wait: float, busy: float, stolen: float, throttled: float,
        pressure: float, used: float,
    ) -> None:  # fmt: skip
        """All in seconds since the start."""
        main = os.getpid()
        for task, name in ((main, "python"), (main + 1, "python"), (main + 2, "hvdtune")):
            self.write(f"proc/self/task/{task}/schedstat", f"{run * 1e9:.0f} {wait * 1e9:.0f} 1\n")
            self.write(f"proc/self/task/{task}/comm", f"{name}\n")
        ticks = [int(x * os.sysconf("SC_CLK_TCK")) for x in (busy, stolen)]
        lines = [f"cpu{cpu} {ticks[0]} 0 0 50 0 0 0 {ticks[1]} 0 0" for cpu in self.cpus]
        self.write("proc/stat", "\n".join(["cpu  1 1 1 1 1 1 1 1 0 0", *lines, "intr 1", ""]))
        held = f"nr_throttled {100 * throttled:.0f}\nthrottled_usec {throttled * 1e6:.0f}\n"
        self.write("cgroup/job/cpu.stat", f"nr_periods 9\n{held}")
        for kind in ("cpu", "memory"):
            some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure * 1e6:.0f}\n"
            self.write(f"proc/pressure/{kind}", some + "full avg10=0 total=7\n")
        ticks_used = int(used * os.sysconf("SC_CLK_TCK"))
        fields = " ".join(["0"] * 10)
        self.write("proc/4711/stat", f"4711 (a (b) c) S {fields} {ticks_used} 0 0 0\n")

    def reader(self) -> cpu_counters.Reader:
        proc, cgroups = self.folder / "proc", self.folder / "cgroup"
        cpus = self.folder / "cpu"
        return cpu_counters.Reader(proc=proc, cgroups=cgroups, cpus=cpus, clock=lambda: self.now)


def test_readings_are_rates_since_the_one_before(tmp_path):
    kernel = Kernel(tmp_path)
    reader = kernel.reader()
    assert reader.read() == {}
    kernel.now += 2.0
    kernel.counts(
        run=0.5, wait=1.0, busy=1.2, stolen=0.3, throttled=0.4, pressure=0.6, used=0
    )  # of two seconds
    found = reader.read()
    count = len(kernel.cpus)
    expected = {
        "run": 0.75, "wait": 1.5, "main": 0.25, "computing": 2.0, "busy": 0.6 * count,
        "stolen": 0.15 * count, "throttled": 0.2, "cpu_pressure": 0.3, "memory_pressure": 0.3,
    }  # fmt: skip
    for key, value in expected.items():
        assert found[COUNTERS[key]] == pytest.approx(value, abs=0.011), key
    assert next(iter(found)) == COUNTERS["run"]  # it tells the readings apart


def test_programs_that_keep_a_cpu_busy_are_named(tmp_path):
    kernel = Kernel(tmp_path)
    reader = kernel.reader()
    reader.read()
    for second in range(1, 5):
        kernel.now += 1.0
        kernel.counts(run=0, wait=0, busy=0, stolen=0, throttled=0, pressure=0, used=0.5 * second)
        found = reader.read()
    assert found["program a (b) c (4711): CPUs in use (CPUs)"] == pytest.approx(0.5)


def test_what_a_kernel_does_not_show_is_left_out(tmp_path):
    (tmp_path / "proc").mkdir()
    now = iter([1.0, 2.0, 3.0, 4.0])
    reader = cpu_counters.Reader(
        proc=tmp_path / "proc", cgroups=tmp_path, cpus=tmp_path, clock=lambda: next(now)
    )
    reader.read()
    found = reader.read()
    assert COUNTERS["involuntary"] in found
    assert not {COUNTERS[key] for key in ("run", "busy", "throttled", "cpu_pressure")} & set(found)


def test_a_limit_of_the_older_control_groups(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/job\n0::/other\n")
    kernel.write("cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
    kernel.write("cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    stat = "cgroup/cpu,cpuacct/job/cpu.stat"
    kernel.write(stat, "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    reader = kernel.reader()
    reader.read()
    kernel.now += 1.0
    # Two CPUs' time, in six periods of 0.1 s.
    kernel.write(stat, "nr_periods 10\nnr_throttled 6\nthrottled_time 1100000000\n")
    assert reader.read()[COUNTERS["throttled"]] == pytest.approx(0.6)


def test_the_sampler_reads_while_it_is_wanted_and_ends():
    wanted, seen, came = threading.Event(), [], threading.Event()

    def emit(name: str, value: float) -> None:
        seen.append(name)
        came.set()

    sampler = cpu_counters.Sampler(emit, 0.01, wanted=wanted.is_set)
    time.sleep(0.05)
    assert not seen
    wanted.set()
    assert came.wait(20)
    sampler.stop()
    count = len(seen)
    time.sleep(0.05)
    assert len(seen) == count
    assert "hvdtune-cpus" not in {thread.name for thread in threading.enumerate()}
