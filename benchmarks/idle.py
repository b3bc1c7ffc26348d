"""The cost of an idle engine: CPU time and wake-ups of sleeping ranks, from /proc.

The ranks initialise, reduce one tensor, and sleep. CPU time is the kernel's (10 ms ticks), so
10 s show 0.1 % of a core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ranks


def main() -> int:
    """Measure; with `--worker FOLDER`, be one of the ranks."""
    parser = ranks.parser(__doc__, ranks=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="(default: 10)")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), args.np, args.seconds)


def measure(folder: Path, count: int, seconds: float) -> int:
    """Start `count` ranks, look at them for `seconds`, print what they used."""
    os.mkfifo(folder / "end")
    command = [*ranks.launcher(count), sys.executable, __file__, "--worker", str(folder)]
    with subprocess.Popen(command) as job:
        while len(list(folder.glob("*.ready"))) < count:
            if job.poll() is not None:
                return job.returncode or 1
            time.sleep(0.05)
        time.sleep(1.0)  # the last of them falls asleep
        pids = sorted(int(path.stem) for path in folder.glob("*.ready"))
        before, started = [usage(pid) for pid in pids], time.monotonic()
        time.sleep(seconds)
        after, elapsed = [usage(pid) for pid in pids], time.monotonic() - started
        with (folder / "end").open("w"):
            pass
    shares = [(b[0] - a[0]) / elapsed for a, b in zip(before, after, strict=True)]
    wakeups = [(b[1] - a[1]) / elapsed for a, b in zip(before, after, strict=True)]
    print(f"{count} idle ranks over {elapsed:.1f} s")
    for number, (share, woken) in enumerate(zip(shares, wakeups, strict=True)):
        print(f"  process {number}: {100 * share:6.2f} % of a core, {woken:7.1f} wake-ups/s")
    print(f"  in total:  {100 * sum(shares):6.2f} % of a core, {sum(wakeups):7.1f} wake-ups/s")
    return job.returncode


def usage(pid: int) -> tuple[float, int]:
    """CPU seconds (user and system) and voluntary context switches of a process so far."""
    # The command, in parentheses, may itself contain anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                switches += int(line.split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), switches


def worker(folder: Path) -> None:
    """Use the engine once, then sleep in a read until the parent ends the job."""
    import numpy as np

    import hvdtune as hvd

    hvd.init()
    hvd.allreduce(np.ones(1000, np.float32), name="once")
    (folder / f"{os.getpid()}.ready").touch()
    (folder / "end").read_bytes()
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
