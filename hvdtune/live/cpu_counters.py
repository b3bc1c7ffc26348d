"""Activity of a rank's threads and of the CPUs that it may use, read from the kernel while it
records.

A thread of its own reads twice a second; a reading takes a fraction of a millisecond. Values that a
kernel or a container does not show are left out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hvdtune.timeline.record.host_counters import ALLOWED, COUNTERS, PROGRAM, listed

#: emit(name with unit, value), at the moment of the reading
Emit = Callable[[str, float], None]

PERIOD_S = 0.5
_STOP_S = 2.0
_TICK = os.sysconf("SC_CLK_TCK")
#: A thread computes if it has this share of the CPU time of the busiest thread, and of one CPU.
_BUSY, _SOME = 0.08, 0.01
#: Programs that keep at least this share of a CPU busy are recorded, at most this many. Looking for
#: them takes some 15 us for each process of the host, so it is done only every few readings, and
#: not at all if there are more processes than this.
_WORTH, _TOLD, _EVERY, _MOST_PROCESSES = 0.1, 5, 4, 2000


class Reader:
    """Reads what one process's threads have done since the last `read`.

    `proc`, `cgroups`, `cpus`: the kernel's folders of counters. `of_host`: also read what is the
    same for all ranks of a host.
    """

    def __init__(
        self,
        *,
        of_host: bool = True,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        cpus: Path = Path("/sys/devices/system/cpu"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_host, self._proc, self._cpus, self._clock = of_host, proc, cpus, clock
        self._limits = _limits(proc, cgroups)
        self._last: dict[str, float] = {}
        self._threads: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}
        self._programs: dict[int, float] = {}
        self._programs_at = 0.0
        self._reads = 0

    def read(self) -> dict[str, float]:
        """Counters by name. Empty the first time: most of them are rates."""
        now = self._clock()
        gone = now - self._last.get("time", now)
        found: dict[str, float] = {}
        for part in (self._own, self._usage, self._limit, self._allowed, self._host):
            with contextlib.suppress(OSError, ValueError, IndexError):
                found.update(part(gone))
        self._last["time"] = now
        self._reads += 1
        return found if gone > 0 else {}

    def _rate(self, key: str, count: float, gone: float) -> dict[str, float]:
        """The growth of a count per second since the last reading, by its counter's name."""
        before = self._last.get(key)
        self._last[key] = count
        if before is None or gone <= 0:
            return {}
        return {COUNTERS[key]: max(count - before, 0.0) / gone}

    def _own(self, gone: float) -> dict[str, float]:
        """All threads of this process, from the scheduler's counts for each, in ns."""
        before, self._threads = self._threads, {}
        runs: list[float] = []
        ran = waited = 0
        for task in os.listdir(self._proc / "self/task"):
            with contextlib.suppress(OSError):  # it has ended
                counts = _text(self._proc / f"self/task/{task}/schedstat").split()
                self._threads[task] = int(counts[0]), int(counts[1])
        for task, (run, wait) in self._threads.items():
            was = before.get(task, (0, 0))
            ran, waited = ran + run - was[0], waited + wait - was[1]
            if not self._name(task).startswith(("hvdtune", "hvd-")):
                runs.append((run - was[0]) / 1e9)
        self._names = {task: name for task, name in self._names.items() if task in self._threads}
        if gone <= 0 or not before:
            return {}
        least = max(_BUSY * max(runs, default=0.0), _SOME * gone)
        return {
            COUNTERS["run"]: ran / 1e9 / gone,
            COUNTERS["wait"]: waited / 1e9 / gone,
            COUNTERS["main"]: self._main(before) / 1e9 / gone,
            COUNTERS["computing"]: float(sum(run >= least for run in runs)),
            **_threads_set(),
        }

    def _main(self, before: dict[str, tuple[int, int]]) -> int:
        main = str(os.getpid())
        return self._threads.get(main, (0, 0))[0] - before.get(main, (0, 0))[0]

    def _name(self, task: str) -> str:
        if task not in self._names:
            self._names[task] = ""
            with contextlib.suppress(OSError):
                self._names[task] = _text(self._proc / f"self/task/{task}/comm").strip()
        return self._names[task]

    def _usage(self, gone: float) -> dict[str, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found = {}
        for key, count in (
            ("system", usage.ru_stime),
            ("involuntary", usage.ru_nivcsw),
            ("voluntary", usage.ru_nvcsw),
            ("major", usage.ru_majflt),
            ("minor", usage.ru_minflt),
        ):
            found.update(self._rate(key, count, gone))
        with contextlib.suppress(OSError, ValueError):
            for line in _text(self._proc / "self/status").splitlines():
                if line.startswith("VmSwap:"):
                    found[COUNTERS["swapped"]] = 1024.0 * int(line.split()[1])
        return found

    def _limit(self, gone: float) -> dict[str, float]:
        """The share of the time in which the control group's limit held its threads back. The
        kernel adds up the time over all CPUs, so the periods that were cut short bound it."""
        held = 0.0
        for number, (file, period) in enumerate(self._limits):
            count = dict(line.split() for line in _text(file).splitlines())
            ns = int(count.get("throttled_usec", 0)) * 1000 + int(count.get("throttled_time", 0))
            key = f"limit{number}"
            values = ns / 1e9, int(count.get("nr_throttled", 0)) * period
            before = [self._last.get(f"{key}.{i}") for i in range(2)]
            self._last.update({f"{key}.{i}": value for i, value in enumerate(values)})
            if gone > 0 and before[0] is not None and before[1] is not None:
                held = max(held, min(values[0] - before[0], values[1] - before[1]) / gone)
        return {COUNTERS["throttled"]: min(max(held, 0.0), 1.0)} if self._limits else {}

    def _allowed(self, gone: float) -> dict[str, float]:
        """The CPUs that this process may use, and how busy they are."""
        own = os.sched_getaffinity(0)
        found = {ALLOWED.format(list=listed(own)): float(len(own))}
        busy = stolen = 0.0
        for line in _text(self._proc / "stat").splitlines():
            if not line.startswith("cpu"):
                break
            name, *ticks = line.split()
            if name != "cpu" and int(name[3:]) in own:
                user, nice, system, _idle, _io, irq, soft, steal = map(float, ticks[:8])
                busy += user + nice + system + irq + soft
                stolen += steal
        found.update(self._rate("busy", busy / _TICK, gone))
        found.update(self._rate("stolen", stolen / _TICK, gone))
        found[COUNTERS["online"]] = float(os.cpu_count() or 1)
        return found

    def _host(self, gone: float) -> dict[str, float]:
        """Values that are the same for all ranks of a host."""
        if not self._of_host:
            return {}
        found: dict[str, float] = {}
        for key in ("cpu", "memory"):
            with contextlib.suppress(OSError, ValueError):
                some = _text(self._proc / "pressure" / key).splitlines()[0]
                total = int(some.rpartition("total=")[2]) / 1e6
                found.update(self._rate(f"{key}_pressure", total, gone))
        with contextlib.suppress(OSError, ValueError):
            own = os.sched_getaffinity(0)
            files = [self._cpus / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in own]
            found[COUNTERS["clock"]] = sum(1e3 * int(_text(file)) for file in files) / len(files)
        if self._reads % _EVERY == 0:
            found.update(self._busiest())
        return found

    def _busiest(self) -> dict[str, float]:
        """The programs that keep most CPUs busy, by name and process. They are read only every
        `_EVERY` readings; the value is the mean since then."""
        pids = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        if len(pids) > _MOST_PROCESSES:
            return {}
        now, before, self._programs = self._clock(), self._programs, {}
        gone, self._programs_at = now - self._programs_at, now
        grown = []
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = _text(self._proc / f"{pid}/stat")
                name, _, rest = text.partition("(")[2].rpartition(")")
                values = rest.split()
                used = (int(values[11]) + int(values[12])) / _TICK
                self._programs[pid] = used
                # A program that was not there the last time has used all its time since then.
                grown.append((used - before.get(pid, 0.0), pid, name))
        if not before or gone <= 0:
            return {}
        busiest = [one for one in sorted(grown, reverse=True) if one[0] / gone >= _WORTH]
        return {
            PROGRAM.format(name=name, pid=pid): min(used / gone, float(os.cpu_count() or 1))
            for used, pid, name in busiest[:_TOLD]
        }


def _text(file: Path) -> str:
    with open(file, encoding="utf-8", errors="replace") as opened:
        return opened.read()


def _threads_set() -> dict[str, float]:
    """The number of threads that PyTorch computes with; without PyTorch OMP_NUM_THREADS, if set."""
    ask = getattr(sys.modules.get("torch"), "get_num_threads", None)
    with contextlib.suppress(Exception):
        count = ask() if ask else int(os.environ["OMP_NUM_THREADS"].split(",")[0])
        return {COUNTERS["set"]: float(count)}
    return {}


def _limits(proc: Path, cgroups: Path) -> list[tuple[Path, float]]:
    """cpu.stat of the process's control group, and of those above it, that limit CPUs, with the
    limit's period in seconds; for both versions of control groups."""
    found = []
    with contextlib.suppress(OSError):
        for line in _text(proc / "self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            roots = [cgroups / "cpu", cgroups / "cpu,cpuacct"] if controllers else [cgroups]
            for root in roots:
                folder = root / path.strip("/")
                for one in (folder, *folder.parents):
                    period = _period(one)
                    if period and (one / "cpu.stat").exists():
                        found.append((one / "cpu.stat", period))
                    if one == root:
                        break
    return found


def _period(folder: Path) -> float:
    """The period of a control group's limit, in seconds; 0 without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = _text(folder / "cpu.max").split()
        return 0.0 if quota == "max" else int(period) / 1e6
    with contextlib.suppress(OSError, ValueError):
        if int(_text(folder / "cpu.cfs_quota_us")) > 0:
            return int(_text(folder / "cpu.cfs_period_us")) / 1e6
    return 0.0


# ---- while a rank records ------------------------------------------------------------------------


class Sampler:
    """Reads every `period_s` seconds while `wanted()`, on a thread of its own, until `stop`."""

    def __init__(
        self,
        emit: Emit,
        period_s: float = PERIOD_S,
        *,
        wanted: Callable[[], bool] = lambda: True,
        of_host: bool = True,
    ) -> None:
        self._emit, self._period_s, self._wanted, self._of_host = emit, period_s, wanted, of_host
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvdtune-cpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No further counter is emitted after this returns. Idempotent."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        reader: Reader | None = None
        while not self._stop.is_set():
            if not self._wanted():
                reader = None  # time before a recording does not count
            else:
                reader = reader or Reader(of_host=self._of_host)
                for name, value in reader.read().items():
                    if self._stop.is_set():
                        return
                    self._emit(name, value)
            self._stop.wait(self._period_s)


_running: Sampler | None = None


def start(wanted: Callable[[], bool], emit: Emit, *, of_host: bool) -> None:
    """Read whenever `wanted()`, until `stop`. `of_host`: see Reader."""
    global _running
    stop()
    _running = Sampler(emit, wanted=wanted, of_host=of_host)


def stop() -> None:
    """No further reading is emitted after this returns. Idempotent."""
    global _running
    if _running is not None:
        _running.stop()
        _running = None
