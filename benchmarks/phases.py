"""The phases of an allreduce, as the engine measures them: pack, reduce, unpack, wait.

    python benchmarks/phases.py --np 2 4 8

For each number of ranks and size, a job records its timeline while it repeatedly reduces one array
of float32 and waits for each call. `hvdtune report` reads the recording. The table shows the parts
of a rank's typical call, in microseconds (docs/metrics.md defines the parts):

  agreeing   until all ranks have announced the tensor and the schedule has it, and until the rank
             begins with it
  pack       copying into the window before the first barrier
  reduce     from then to the last barrier: packing, reducing and unpacking overlap here
  unpack     copying out after the last barrier
  wait       for other ranks, at barriers. If ranks outnumber CPUs, the others work meanwhile

  rest       everything else, Python included

While a job records, no operation bypasses the coordinator (docs/timeline.md), so messages that
otherwise bypass it (docs/performance.md, "What is chosen when") take longer here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ranks

from hvdtune.bench.sizes import format_size, parse_size

#: Titles of columns, and the parts of `hvdtune report --json` that each adds up.
COLUMNS = {
    "agreeing": ("skew_wait_s", "negotiation_s", "cycle_wait_s", "queue_s"),
    "pack": ("copy_in_s",),
    "reduce": ("reduce_s",),
    "unpack": ("copy_out_s",),
    "wait": ("peer_wait_s",),
    "rest": ("compute_s", "other_s"),
}


def main() -> int:
    """Measure; with `--worker`, be one rank of a job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", nargs="+", type=int, default=[2], help="ranks (default: 2)")
    parser.add_argument("--sizes", nargs="+", default=["4M", "16M", "64M"])
    parser.add_argument("--calls", type=int, default=200, help="of each size (default: 200)")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.calls)
        return 0
    print(f"{'ranks':>5} {'size':>8} {'call us':>10}", *(f"{name:>9}" for name in COLUMNS))
    for number in args.np:
        for size in map(parse_size, args.sizes):
            show(number, size, measure(number, size, args.calls))
    return 0


def measure(number: int, size: int, calls: int) -> dict[str, Any]:
    """The report's `typical` call of a job that records itself. Exits if the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "t.json"))
        work = [sys.executable, __file__, "--calls", str(calls), "--worker", str(size)]
        job = [*ranks.launcher(number), "--timeline-filename", path, *work]
        if status := subprocess.run(job, check=False).returncode:
            sys.exit(status)
        reader = [*ranks.launcher(number)[:3], "report", "--json", path]
        found = subprocess.run(reader, check=True, stdout=subprocess.PIPE)
        typical: dict[str, Any] = json.loads(found.stdout)["waterfall"]["typical"]
        return typical


def show(number: int, size: int, typical: dict[str, Any]) -> None:
    """One line of the table."""
    parts = typical["parts_s"]
    columns = [sum(parts[part] for part in names) * 1e6 for names in COLUMNS.values()]
    cells = " ".join(f"{value:9.1f}" for value in columns)
    print(f"{number:>5} {format_size(size):>8} {typical['step_s'] * 1e6:10.1f} {cells}", flush=True)


def worker(size: int, calls: int) -> None:
    """Reduce, on this rank."""
    import hvdtune as hvd

    hvd.init()
    array = np.zeros(size // 4, np.float32)
    for _ in range(calls):
        hvd.allreduce_(array, op=hvd.Sum, name="array")
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
