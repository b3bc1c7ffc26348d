"""How soon a job notices a death: kill -9 of one rank of a running job, several times.

Prints the time from the kill until the last surviving rank has raised HorovodInternalError and
until `hvdtune run` has ended. Checks that both name the dead rank.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ranks


def main() -> int:
    """Measure; with `--worker FOLDER`, be one of the ranks."""
    parser = ranks.parser(__doc__, ranks=4)
    parser.add_argument("--rounds", type=int, default=20, help="(default: 20)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the tensors")
    parser.add_argument("--share-gpu", action="store_true", help="several ranks on one GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all times, in seconds")
    args = parser.parse_args()
    if args.worker:
        worker(Path(args.worker), args.device)
        return 0
    flags = ["--share-gpu"] * args.share_gpu
    raised, ended = [], []
    for round_number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            victim = round_number % args.np
            times = kill_one(Path(folder), args.np, victim, args.device, flags)
        raised.append(times[0])
        ended.append(times[1])
    if args.json:
        args.json.write_text(json.dumps({"raised_s": raised, "ended_s": ended}))
    print(f"kill -9 of one of {args.np} ranks in the middle of training, {args.rounds} times")
    for what, times in (("last survivor raised after", raised), ("launcher ended after", ended)):
        print(
            f"  {what:26}  median {1e3 * statistics.median(times):7.1f} ms, "
            f"longest {1e3 * max(times):7.1f} ms"
        )
    return 0


def kill_one(
    folder: Path, count: int, victim: int, device: str = "cpu", flags: Sequence[str] = ()
) -> tuple[float, float]:
    """One job: seconds from the kill to the last exception, and to the launcher's end."""
    worker = [sys.executable, __file__, "--device", device, "--worker", str(folder)]
    command = [*ranks.launcher(count), *flags, *worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        while len(list(folder.glob("*.pid"))) < count:
            if job.poll() is not None:
                sys.exit(job.returncode or 1)
            time.sleep(0.01)
        time.sleep(0.2 + random.random() / 10)  # somewhere in a step
        pid = int((folder / f"{victim}.pid").read_text())
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        output = job.communicate()[0].decode()
        ended = time.monotonic() - killed
    if job.returncode == 0 or f"rank {victim}" not in output.lower():
        sys.exit(f"the launcher did not name rank {victim}:\n{output}")
    survivors = [json.loads(path.read_text()) for path in folder.glob("*.raised")]
    if len(survivors) != count - 1 or any(f"rank {victim} " not in s["text"] for s in survivors):
        sys.exit(f"not every survivor named rank {victim}: {survivors}")
    return max(s["time"] for s in survivors) - killed, ended


def worker(folder: Path, device: str) -> None:
    """Train until a rank dies; write when this rank noticed, by the machine's clock."""
    hvd: Any
    sizes = (1000, 100_000, 10, 50_000)
    if device == "cuda":
        import torch

        import hvdtune.torch as hvd

        hvd.init()
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
        gradients: list[Any] = [torch.ones(size, device="cuda") for size in sizes]
    else:
        import hvdtune as hvd

        hvd.init()
        gradients = [np.ones(size, np.float32) for size in sizes]
    try:
        for step in range(1_000_000):
            handles = [hvd.allreduce_async_(g, name=f"{i}") for i, g in enumerate(gradients)]
            for handle in handles:
                hvd.synchronize(handle)
            if step == 3:
                (folder / f"{hvd.rank()}.new").write_text(str(os.getpid()))
                (folder / f"{hvd.rank()}.new").rename(folder / f"{hvd.rank()}.pid")
    except hvd.HorovodInternalError as error:
        report = {"time": time.monotonic(), "text": str(error)}
        (folder / f"{hvd.rank()}.raised").write_text(json.dumps(report))
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
