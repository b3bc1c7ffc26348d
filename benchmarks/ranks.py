"""Starts a comparison's ranks under `hvdtune run` and returns the results of rank 0.

A script calls `measure` in the process that the user starts, and `measure` runs the same script
again on every rank with `--worker FILE`; rank 0 writes its results to FILE as JSON. Both sides of a
comparison run in the same processes and take turns, because the machine is never quiet.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def measure(script: str, ranks: int, arguments: Sequence[str], limit: float | None = None) -> Any:
    """Run `script` on `ranks` ranks; the results that rank 0 wrote. Exits if the ranks fail.

    Ends the ranks after `limit` seconds, and then returns None.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        worker = [sys.executable, script, *arguments, "--worker", str(results)]
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        with subprocess.Popen([*launcher(ranks), *worker], env=environment) as started:
            try:
                code = started.wait(limit)
            except subprocess.TimeoutExpired:
                started.terminate()  # the launcher ends its ranks
                started.wait()
                return None
            except BaseException:
                started.terminate()
                raise
        if code != 0:
            sys.exit(code)
        return json.loads(results.read_text())


def forwarded(args: argparse.Namespace, *names: str) -> list[str]:
    """The flags `names` as the user gave them, for the ranks' command lines."""
    return [word for name in names for word in (f"--{name}", str(getattr(args, name)))]


def launcher(ranks: int) -> list[str]:
    """The command that starts the command appended to it on `ranks` ranks."""
    # Not `python -m`, which would take a checkout in the current directory for the package.
    start = "from hvdtune.cli.main import main; sys.exit(main())"
    start = f"import sys; sys.path[:] = filter(None, sys.path); {start}"
    return [sys.executable, "-c", start, "run", "-np", str(ranks)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def parser(description: str | None, ranks: int) -> argparse.ArgumentParser:
    """The flags every comparison has."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--np", type=int, default=ranks, help=f"ranks (default: {ranks})")
    made.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    return made


def start_both() -> tuple[Any, Any]:
    """Initialise hvdtune and torch.distributed's gloo in this rank; (hvdtune, torch)."""
    import torch
    import torch.distributed

    import hvdtune as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=hvd.rank(), world_size=hvd.size())
    return hvd, torch


def time_in_turns(
    hvd: Any,
    calls: Mapping[str, Callable[[], None]],
    rounds: int,
    most: int,
    seconds: float,
) -> dict[str, list[float]]:
    """Seconds of every timed call of every rank, by name.

    In a round each name has a turn, and every round begins with a different name: a few calls to
    warm up, then as many as fit into `seconds`, at most `most`. Equal on every rank.
    """
    names = list(calls)
    durations: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            durations[name] += _turn(hvd, calls[name], most, seconds)
    return {
        name: np.concatenate(hvd.allgather_object(values)).tolist()
        for name, values in durations.items()
    }


def _turn(hvd: Any, call: Callable[[], None], most: int, seconds: float) -> list[float]:
    hvd.barrier()
    first = _time_of(call)
    estimate = min(first, _time_of(call)) if first < seconds else first
    agreed = hvd.allreduce(np.array([estimate]), op=hvd.Max, name="estimate")
    hvd.barrier()
    return [_time_of(call) for _ in range(max(1, min(most, int(seconds / agreed[0]))))]


def _time_of(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def context_switches() -> int:
    """Context switches of this process so far, voluntary and involuntary ones."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw


def report(path: Path, rank: int, results: Any) -> None:
    """Hand the results to the parent (rank 0 only)."""
    if rank == 0:
        path.write_text(json.dumps(results))


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return float(np.median(values))


def nearest_rank(values: Sequence[float], fraction: float) -> float:
    """The percentile, as one of the measured values."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]
