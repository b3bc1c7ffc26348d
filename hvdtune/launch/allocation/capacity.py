"""How many processes a machine can hold, so that a job too large for it is refused at once.

Only limits that are certain count: each process is assumed to need next to nothing, and other
hosts only to have the limits that every Linux kernel has.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from hvdtune.launch.allocation.hosts import Host, is_local
from hvdtune.launch.errors import LaunchError

# What `sleep` was measured to need: its own pages, its page tables and the kernel's part.
RANK_BYTES = 200 * 1024
# Memory that the launcher uses for a rank, wherever that runs.
_NOTE_BYTES = 4 * 1024
# Descriptors of the launcher that belong to no rank.
_SPARE_FILES = 48
# The launcher, its guard, and a command that watches the job.
_SPARE_PROCESSES = 4
# Of a rank here, of a rank anywhere with --output-filename, and of ssh to another host.
PIPES, OUTPUT_FILES, CONNECTION_PIPES = 2, 2, 3
_MOST_PIDS = 2**22  # PID_MAX_LIMIT of 64-bit kernels
# With fewer ranks than this the resolver is not asked.
_FEW = 64
_PRIVILEGES = 1 << 24 | 1 << 21  # CAP_SYS_RESOURCE, CAP_SYS_ADMIN: exempt from RLIMIT_NPROC

Limit = tuple[int, str]  # number of processes, and the reason


def require_room(
    hosts: Sequence[Host],
    count: int,
    setting: str = "-np",
    files: int = PIPES,
    own_files: int = 0,
) -> None:
    """Raise `LaunchError` if this machine cannot hold its part of `count` processes.

    They fill the hosts in order. `files` is how many files the launcher keeps open for each process
    here, `own_files` how many it keeps for itself. `setting` is how the number was given.
    """
    here, left = 0, min(count, sum(host.slots for host in hosts))
    for host in hosts:
        taken = min(host.slots, left)
        left -= taken
        named_here = host.name in ("localhost", os.uname().nodename)
        if named_here or (taken > _FEW and is_local(host.name)):
            here += taken
        elif taken > _MOST_PIDS:
            _refuse(setting, count, host.name, (_MOST_PIDS, "no Linux has more process ids"))
    elsewhere = min(count, sum(host.slots for host in hosts)) - here
    if here:
        least = min([*_limits(files), *_limits_of_files(own_files)], default=None)
        if least is not None and here > least[0]:
            _refuse(setting, count, "this machine", least)
    memory = free_memory(swap=True)
    if memory is not None and elsewhere * _NOTE_BYTES > memory:
        room = (memory // _NOTE_BYTES, f"{memory / 1e9:.1f} GB of memory are free")
        _refuse(setting, count, "the launcher", room)


def _refuse(setting: str, count: int, who: str, limit: Limit) -> None:
    most, why = limit
    number = f"{count}" if count < 10**24 else f"a number of {len(str(count))} digits"
    raise LaunchError(
        f"{setting} {number}: {who} can hold {max(0, most)} processes of a job at most: {why}."
    )


def _limits(files: int) -> Iterator[Limit]:
    threads = _threads_of_all()
    for name in ("pid_max", "threads-max"):
        most = _number(f"/proc/sys/kernel/{name}")
        if most is not None:
            room = most - threads - _SPARE_PROCESSES
            yield room, f"the kernel allows {most} (kernel.{name}), and {threads} are running"
    yield from _limits_of_user()
    yield from _limits_of_group()
    if files:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if most != resource.RLIM_INFINITY:
            room = (most - _SPARE_FILES) // files
            why = f"the launcher may open {most} files (ulimit -Hn) and needs {files} for each"
            yield room, why
    memory = free_memory(swap=True)
    if memory is not None:
        needs = f"even a process that does nothing takes {RANK_BYTES // 1024} KiB"
        yield memory // RANK_BYTES, f"{memory / 1e9:.1f} GB of memory are free, and {needs}"


def _limits_of_files(files: int) -> Iterator[Limit]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files and most != resource.RLIM_INFINITY:
        there = len(os.listdir("/proc/self/fd"))
        room = (most - there - _SPARE_FILES) // files
        yield room, f"this program may open {most} files (ulimit -n), and {there} are open"


def _limits_of_user() -> Iterator[Limit]:
    """The limit on the processes of this user, unless the user has root's privileges."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most == resource.RLIM_INFINITY:
        return
    fields = _status("self")
    if os.getuid() == 0 or int(fields.get("CapEff", "0"), 16) & _PRIVILEGES:
        return
    user, threads = str(os.getuid()), 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _status(entry)
            if fields.get("Uid", "").split()[:1] == [user]:
                threads += int(fields.get("Threads", "1"))
    room = most - threads - _SPARE_PROCESSES
    yield room, f"this user may have {most} (ulimit -u), and {threads} are running"


def _limits_of_group() -> Iterator[Limit]:
    """The limits of this process's control group and of the groups that contain it."""
    for folder in _groups("pids", "/sys/fs/cgroup/pids"):
        most, there = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None and there is not None:
            room = most - there - _SPARE_PROCESSES
            yield room, f"its control group may have {most} (pids.max), and {there} are running"


def free_memory(*, swap: bool = False) -> int | None:
    """Bytes that this process may still use, with `swap` also those of swap; None if unknown."""
    names = ("MemAvailable:", "SwapFree:") if swap else ("MemAvailable:",)
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(names):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    free = [sum(found)] if found else []
    for folder in _groups("memory", "/sys/fs/cgroup/memory"):
        for most_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, used = _number(folder / most_name), _number(folder / used_name)
            if most is not None and used is not None:
                free.append(max(0, most - used + _reclaimable(folder)))
    return min(free, default=None)


def _reclaimable(folder: Path) -> int:
    """Bytes that the kernel can take back from its cache of files."""
    kinds = ("inactive_file", "active_file", "slab_reclaimable")
    try:
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for name, value in pairs if name in kinds)
    except (OSError, ValueError):
        return 0


def _groups(controller: str, old_root: str) -> Iterator[Path]:
    """The folders of this process's control group and of those that contain it, in v1 and v2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, names, path = line.split(":", 2)
        if number == "0":
            root = Path("/sys/fs/cgroup")
        elif controller in names.split(","):
            root = Path(old_root)
        else:
            continue
        own = root / path.lstrip("/")
        # In a container the path may be the host's; its own group is then at the root.
        for folder in (own, *own.parents):
            if folder == root or root in folder.parents:
                yield folder


def _threads_of_all() -> int:
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0


def _status(process: str) -> dict[str, str]:
    try:
        text = Path(f"/proc/{process}/status").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(path: str | Path) -> int | None:
    """The number in a file of the kernel's; None for "max", and if there is no such file."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def allow_files(more: int) -> tuple[int, int] | None:
    """Raise this process's limit on open files, as far as allowed, so that it can open `more`.

    Returns the previous limit, which the ranks then get; None if it was high enough.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + more + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most <= soft:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft, hard
