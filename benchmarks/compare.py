"""Compares hvdtune with the other ways to sum arrays on one host, in one command.

  python benchmarks/compare.py --json compare.json --plot compare.svg     about 20 minutes
  python benchmarks/compare.py --quick                                    about 5 minutes
  python benchmarks/compare.py --load docs/compare.json       the run of docs/performance.md

Peers are installed from PyPI (once: 2.4 GB on disk, most of it oneCCL) into environments of their
own in the user's cache folder. A peer that cannot be installed or run is left out, and the output
says why. `torch gloo` is the PyTorch that hvdtune itself uses. Small C and C++ programs (peers/)
measure peers without a Python interface of their own, so they pay no cost of Python; hvdtune and
gloo are called from Python, through `hvdtune.torch` and `torch.distributed`.

Work: a blocking float32 sum, in place, of one array (4 B to 64 MiB); or one training step's
gradients, in the order in which a backward pass finishes them. hvdtune gets them one by one and
then waits; for all other systems they are packed by hand into buckets of 25 MB (as DDP does; the
MPIs reduce bucket by bucket, gloo reduces while the next one is packed). Every peer must first
compute the right sums.

All systems are measured in the same way:
- Each round starts every peer, including hvdtune, once for every number of ranks, in an order
  that rotates, so a disturbance of the machine affects all of them.
- Each process warms a work up with growing batches of calls until one batch takes a sixth of its
  seconds. The ranks then agree how many calls fit into these seconds, at least 2, and make all of
  them back to back, with no barrier between. A call of more than 4 s is not repeated in other
  rounds.
- A call lasts from the completion of the previous call on its slowest rank to its own completion
  on its slowest rank, by the clock that all processes share: the pace of the job. The times of the
  calls add up to the time of the job, so no rank's waiting is hidden or counted twice, as it would
  be with the medians of one rank's own times if ranks outnumber CPUs.
- peers/results.py defines medians, ratios and shares; hvdtune.bench.memory says how the bound's
  rates are measured, in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers import environments, jobs, plot, report, results, systems, works
from peers.environments import Unavailable
from peers.jobs import JobFailed
from peers.results import Collector, Comparison
from peers.systems import Peer
from peers.works import Work

from hvdtune.bench import memory
from hvdtune.bench.memory import MemoryCurve
from hvdtune.launch.allocation.capacity import free_memory

#: More calls than these add no information.
MOST_CALLS = 20_000

#: Seconds; a work whose call takes longer is measured in one round only.
PATIENCE = 4.0

#: Of a job of hvdtune on one machine.
MOST_RANKS = 64

INTERRUPTED = "what came after the interruption"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, or show a comparison made before; the exit status."""
    args = parse(arguments)
    # So that running ranks are ended before this process.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if args.load:
        comparison = results.from_json(json.loads(args.load.read_text()))
        print("\n".join(report.header(comparison)))
    else:
        try:
            comparison = compare(args)
        except KeyboardInterrupt:
            print("interrupted before anything was measured", file=sys.stderr)
            return 130
    for part in (report.tables, report.summary, report.footer):
        print("\n".join(part(comparison)))
    if args.json:
        args.json.write_text(json.dumps(comparison.to_json(), indent=1) + "\n")
    if args.plot:
        args.plot.write_text(plot.svg(comparison), encoding="utf-8")
    if INTERRUPTED in comparison.left_out:
        return 130
    return 0 if any(case.ratio is not None for case in comparison.cases) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags; `--quick` only changes defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=_ranks, default=(2, 4, 8), help="ranks (default: 2,4,8)")
    parser.add_argument(
        "--peers",
        default=systems.DEFAULT,
        help=f"default: {systems.DEFAULT}; there are also "
        f"{', '.join(key for key in systems.all_peers() if key not in systems.DEFAULT.split(','))}",
    )
    parser.add_argument(
        "--works", default=None, help=f"sizes and gradient sets (default: {works.DEFAULT})"
    )
    parser.add_argument("--rounds", type=_positive, default=None, help="default: 5")
    parser.add_argument(
        "--seconds", type=float, default=None, help="timed calls of a work a round (default: 0.4)"
    )
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds a process start may take"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"2 rounds of 0.2 s, works {works.QUICK}"
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=environments.default_folder(),
        metavar="DIR",
        help="where peers are installed (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw a picture")
    parser.add_argument(
        "--load", type=Path, metavar="FILE", help="measure nothing, show what --json wrote"
    )
    args = parser.parse_args(arguments)
    args.environments = args.environments.absolute()
    try:
        args.works = works.parse(args.works or (works.QUICK if args.quick else works.DEFAULT))
        args.peers = systems.select(args.peers)
    except ValueError as error:
        parser.error(str(error))
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.seconds = args.seconds or (0.2 if args.quick else 0.4)
    if args.seconds <= 0 or args.limit <= 0:
        parser.error("--seconds and --limit must be positive")
    for path in filter(None, (args.json, args.plot)):
        if not os.access(path.absolute().parent, os.W_OK):
            parser.error(f"cannot write {path}: its folder does not exist or is read-only")
    if args.load and not args.load.is_file():
        parser.error(f"cannot read {args.load}: no such file")
    return args


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _ranks(text: str) -> tuple[int, ...]:
    found = tuple(sorted({_positive(part.strip()) for part in text.split(",")}))
    if found[0] < 2:
        raise argparse.ArgumentTypeError("a comparison needs at least 2 ranks")
    return found


def compare(args: argparse.Namespace) -> Comparison:
    """Install and measure in rounds; returns the results, also if interrupted."""
    began = time.monotonic()
    cpus = len(os.sched_getaffinity(0))
    comparison = Comparison(
        machine=_machine(cpus),
        options={"rounds": args.rounds, "seconds": args.seconds},
        works={
            work.key: {"title": work.title, "size_bytes": work.size_bytes, "is_set": work.is_set}
            for work in args.works
        },
    )
    prepared = _prepare(args, comparison, cpus)
    print("\n".join(report.header(comparison)), flush=True)
    collector = Collector(comparison)
    try:
        _rounds(args, prepared, collector, cpus)
    except KeyboardInterrupt:
        comparison.left_out.append(INTERRUPTED)
    _progress("")
    collector.finish()
    comparison.seconds = time.monotonic() - began
    return comparison


def _prepare(args: argparse.Namespace, comparison: Comparison, cpus: int) -> list[Peer]:
    """Install the peers; those that can be measured. Exits if hvdtune cannot."""
    ready = []
    for peer in args.peers:
        _progress(f"preparing {peer.title} in {args.environments}")
        try:
            peer.prepare(args.environments)
        except Unavailable as error:
            if peer.key == results.OWN:
                sys.exit(str(error))
            _leave_out(comparison, f"{peer.title}: {error}")
            continue
        ready.append(peer)
        comparison.peers[peer.key] = {
            "title": peer.title,
            "version": peer.version(),
            "settings": {str(ranks): peer.settings(ranks, cpus) for ranks in args.np},
        }
    _progress("")
    return ready


def _rounds(args: argparse.Namespace, peers: list[Peer], collector: Collector, cpus: int) -> None:
    comparison = collector.comparison
    plan = {ranks: _fitting(args.works, ranks, comparison) for ranks in args.np}
    skipped: set[tuple[str, int, Work]] = set()
    curves: list[MemoryCurve] = []
    for number in range(args.rounds):
        turn = f"round {number + 1} of {args.rounds}"
        _progress(f"{turn}: memory")
        try:
            curves.append(_memory(args, cpus))
        except JobFailed as error:
            _leave_out(comparison, f"the bound in {turn}: {error}")
        comparison.memory = results.best_curve(curves) if curves else None
        for ranks, fitting in plan.items():
            first = number % len(peers)
            for peer in peers[first:] + peers[:first]:
                wanted = [work for work in fitting if (peer.key, ranks, work) not in skipped]
                if not wanted:
                    continue
                _progress(f"{turn}: np {ranks}, {peer.title}")
                start = peer.start(ranks, cpus)
                try:
                    times = jobs.measure(start, ranks, wanted, args.seconds, MOST_CALLS, args.limit)
                except JobFailed as error:
                    skipped.update((peer.key, ranks, work) for work in fitting)
                    _leave_out(comparison, f"{peer.title}, np {ranks}: {error}")
                    continue
                for work, measured in zip(wanted, times, strict=True):
                    collector.take(peer.key, ranks, work.key, number, measured)
                    if measured.min() > PATIENCE:
                        skipped.add((peer.key, ranks, work))


def _fitting(wanted: Sequence[Work], ranks: int, comparison: Comparison) -> tuple[Work, ...]:
    fitting = works.that_fit(wanted, ranks, free_memory())
    for work in wanted:
        if work not in fitting:
            _leave_out(comparison, f"{work.title}, np {ranks}: not enough memory")
    return fitting


def _memory(args: argparse.Namespace, cpus: int) -> MemoryCurve:
    """The rates of this machine's memory with all usable CPUs busy; raises JobFailed."""
    largest = max(work.size_bytes for work in args.works)
    sizes = [memory.LEAST_SIZE, *memory.sizes_up_to(2 * largest)]
    workers = min(cpus, MOST_RANKS)
    start = systems.hvdtune_job("memory_rank.py", workers)
    with tempfile.TemporaryDirectory(prefix="hvdtune-compare-") as name:
        path = Path(name, "curve.json")
        arguments = [str(path), *map(str, sizes)]
        jobs.run(start, workers, arguments, Path(name), args.limit)
        return results.curve_from_json(json.loads(path.read_text()))


def _machine(cpus: int) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0] if models else "unknown CPU",
        "cpus": cpus,
        "memory_gib": total / 2**30,
        "date": time.strftime("%Y-%m-%d"),
    }


def _leave_out(comparison: Comparison, text: str) -> None:
    comparison.left_out.append(text)
    _progress("")
    print(f"left out: {text}", file=sys.stderr, flush=True)


_say: Callable[[str], Any] = sys.stderr.write


def _progress(text: str) -> None:
    """One line that the next one replaces, on a terminal only."""
    if sys.stderr.isatty():
        _say(f"\r\033[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
