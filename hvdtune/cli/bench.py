"""`hvdtune bench`: how fast collectives are on this machine, and how fast its memory allows."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HELP = "measure collectives and real models' gradients against the speed of this machine's memory"

DESCRIPTION = """\
Starts ranks on this machine and measures, in one run: the speed of its memory, one operation over
a sweep of sizes (nccl-tests' table), and the gradients of real models, each tensor submitted on
its own as in training. Results are checked. Without arguments it takes about a minute.
"""

EPILOG = """\
columns:
  time     mean over ranks and iterations; out of place, it includes allocating the result
  p50 p99  percentiles of the same durations (in place if the operation has such a form)
  algbw    size / time; busbw: algbw x nccl-tests' factor; 1 GB = 10^9 bytes
  share    the time of copies through memory / the time measured (from 64 KiB on); above 100 %
           if pieces stay in cache
  #wrong   wrong elements on all ranks

examples:
  hvdtune bench --np 8
  hvdtune bench --np 2 -b 8 -e 128M -f 2 --workload none
  hvdtune bench --np 4 --op alltoall --json alltoall.json --html alltoall.html
  hvdtune bench --device cuda -b 1K -e 256M
  HOROVOD_FUSION_THRESHOLD=4MB hvdtune bench --np 2 --no-sweep --workload resnet50,bert-base

Settings from the environment (HOROVOD_*) apply to the ranks.
"""

#: Seconds of timed iterations: one form of one size, one gradient set.
SWEEP_BUDGET = 0.4
WORKLOAD_BUDGET = 4.0

#: A run without arguments should end within this time; the last cases of a slow one get less.
SECONDS = 62.0

# Bytes of an element. (Asking NumPy would delay the first line by its import.)
_DTYPES = {
    **{"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8},
    **{"float16": 2, "float32": 4, "float64": 8, "bool": 1},
}


def _size(text: str) -> int:
    from hvdtune.bench.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workloads(text: str) -> tuple[str, ...]:
    from hvdtune.bench.workloads.gradient_sets import select

    try:
        return select(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(least: int) -> Any:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted: give a whole number, {least} or more"
            )
        return int(text)

    return parse


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 < factor <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: give a number above 1")
    return factor


def _output(text: str) -> Path:
    path = Path(text).absolute()
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: give a file in a folder that exists and may be written to"
        )
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; the short ones are nccl-tests'."""
    parser.usage = "hvdtune bench [-np N] [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "-np",
        "--np",
        dest="ranks",
        type=_whole(1),
        default=None,
        metavar="N",
        help="ranks to start (default: one for each usable CPU, at least 2)",
    )
    what = parser.add_argument_group("what to measure")
    operations = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
    what.add_argument(
        "--op",
        choices=operations,
        default="allreduce",
        metavar="NAME",
        help=f"operation of the sweep: {', '.join(operations)} (default: allreduce)",
    )
    what.add_argument(
        "-d",
        "--dtype",
        choices=list(_DTYPES),
        default="float32",
        metavar="TYPE",
        help=f"data type of the sweep: {', '.join(_DTYPES)} (default: float32); a sum of bool "
        "is a logical or",
    )
    what.add_argument(
        "-b",
        "--begin",
        type=_size,
        default=4,
        metavar="SIZE",
        help="smallest size in bytes: 8, 4K, 128M, 1G (default: 4)",
    )
    what.add_argument(
        "-e",
        "--end",
        type=_size,
        default=64 << 20,
        metavar="SIZE",
        help="largest size (default: 64M)",
    )
    what.add_argument(
        "-f",
        "--factor",
        type=_factor,
        default=4.0,
        metavar="X",
        help="each size is X times the one before (default: 4)",
    )
    what.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the arrays are: in CPU memory, or PyTorch tensors on GPUs (default: cpu)",
    )
    what.add_argument(
        "--share-gpu",
        action="store_true",
        help="with --device cuda: more ranks than GPUs, which take turns (for tests)",
    )
    what.add_argument("--no-sweep", action="store_true", help="measure no sizes, only workloads")
    what.add_argument(
        "--workload",
        type=_workloads,
        default=None,
        metavar="NAME",
        help="gradient sets (allreduce): resnet50, vgg16, inception3, bert-base, gpt2, tiny, "
        "several with commas, all or none (default: all; none with another --op)",
    )
    how = parser.add_argument_group("how to measure")
    how.add_argument(
        "-n",
        "--iters",
        type=_whole(1),
        default=None,
        metavar="N",
        help="timed iterations of each case (default: as many as fit in "
        f"{SWEEP_BUDGET} s per size, {WORKLOAD_BUDGET:g} s per workload)",
    )
    how.add_argument(
        "-w",
        "--warmup",
        type=_whole(0),
        default=None,
        metavar="N",
        help="iterations before those (default: two, counting the checked one, and as many more "
        "as fit in a tenth of that time)",
    )
    how.add_argument(
        "-c",
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare every element of one result of each case with the right one (default: yes)",
    )
    files = parser.add_argument_group("files")
    for kind, text in (
        ("json", "all results, unrounded, and the settings they were measured with"),
        ("csv", "one line for each measurement"),
        ("html", "a page with figures, self-contained"),
        ("timeline", "trace of the ranks (sets HOROVOD_TIMELINE; costs some speed)"),
    ):
        files.add_argument(f"--{kind}", type=_output, default=None, metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure and print; return 0 for right results, 1 for wrong ones, 2 for bad arguments."""
    from hvdtune.bench import runner
    from hvdtune.bench.report.progress import Display
    from hvdtune.bench.report.results import Report
    from hvdtune.bootstrap import python_command
    from hvdtune.core.libraries.machine import usable_cpus
    from hvdtune.launch.allocation import capacity
    from hvdtune.launch.allocation.hosts import Host

    if args.end < args.begin:
        print(
            f"hvdtune bench: -e {args.end} is below -b {args.begin}: "
            "the largest size must not be below the smallest.",
            file=sys.stderr,
        )
        return 2
    if args.ranks:
        capacity.require_room([Host("localhost", args.ranks)], args.ranks, "--np")
    cpus = usable_cpus()
    report = Report(ranks=args.ranks or max(2, cpus), cpus=cpus, device=args.device)
    if args.device == "cuda":
        problem = _prepare_cuda(args, report)
        if problem:
            print(f"hvdtune bench: --device cuda: {problem}.", file=sys.stderr)
            return 1
    plan = _plan(args, report)
    heading = _heading(args, report)
    display = Display()
    display.lines([f"# {line}" for line in heading] + [f"# Warning: {n}" for n in report.notes])
    environ = dict(os.environ)
    if args.timeline:
        environ["HOROVOD_TIMELINE"] = str(args.timeline)
    # The gradient sets follow each other in one job; each alone would fit into the default.
    environ.setdefault("HOROVOD_CACHE_CAPACITY", "4096")
    status = 0
    try:
        share = ["--share-gpu"] if args.share_gpu else []
        # Without -H, a job within LSF would run on the hosts of its allocation.
        ours = ["-np", str(report.ranks), "-H", f"localhost:{report.ranks}"]
        ours += ["--parent", str(os.getpid())]
        launcher = python_command("hvdtune.cli.main", "run", *ours, *share)
        runner.run(plan, report, launcher, environ, display)
    except runner.BenchError as error:
        print(f"hvdtune bench: {error}.", file=sys.stderr)
        status = error.status if 0 < error.status < 256 else 1
    except KeyboardInterrupt:
        print("hvdtune bench: interrupted.", file=sys.stderr)
        status = 130
    _write_files(args, report, heading)
    return status or (1 if report.wrong() else 0)


def _prepare_cuda(args: argparse.Namespace, report: Any) -> str:
    """Decide the number of ranks, and note the hardware; return what is missing, or ""."""
    from hvdtune.bench import cuda

    if args.op == "barrier":
        return "a barrier has no tensor: leave --device out"
    try:
        found = cuda.look(os.environ)
        report.ranks = cuda.ranks_for(found, args.ranks, args.share_gpu)
    except cuda.Unavailable as error:
        return str(error)
    report.notes += [f"{note}." for note in found.notes]
    if report.ranks > len(found.gpus):
        report.notes.append(f"{report.ranks} ranks share {_gpus(found.gpus)}; they take turns.")
    settings = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    report.environment.update(
        gpus=list(found.gpus), nccl_version=found.nccl, nccl_settings=settings
    )
    return ""


def _gpus(names: Sequence[str]) -> str:
    kinds = ", ".join(dict.fromkeys(names))
    return f"{len(names)} GPU{'s' if len(names) > 1 else ''} ({kinds})"


def _plan(args: argparse.Namespace, report: Any) -> Any:
    """Turn the flags into a plan; workloads that do not fit into memory become notes."""
    from hvdtune.bench import memory
    from hvdtune.bench.collectives import COLLECTIVES
    from hvdtune.bench.plan import Plan
    from hvdtune.bench.sizes import sweep_sizes
    from hvdtune.bench.workloads.gradient_sets import WORKLOADS

    ranks, cpus = report.ranks, report.cpus
    granularity = COLLECTIVES[args.op].granularity(ranks, _DTYPES[args.dtype])
    sizes = sweep_sizes(args.begin, args.end, args.factor, granularity)
    if args.no_sweep:
        sizes = []
    elif args.op == "barrier":
        sizes = [0]
    wanted = args.workload
    if wanted is None:
        wanted = tuple(WORKLOADS) if args.op == "allreduce" else ()
    if ranks > cpus and report.device == "cpu":
        report.notes.append(
            f"{ranks} ranks share {cpus} usable CPU{'s' if cpus > 1 else ''}; they take turns, "
            "and times include waiting for a turn."
        )
    workloads = _fitting(wanted, report)
    largest = max([*sizes, *(4 * WORKLOADS[key].elements() for key in workloads)], default=0)
    measures_memory = ranks > 1 and largest > 0 and report.device == "cpu"
    return Plan(
        operation=args.op,
        dtype=args.dtype,
        sizes=tuple(sizes),
        workloads=workloads,
        iterations=args.iters,
        warmup=args.warmup,
        check=args.check,
        sweep_budget=SWEEP_BUDGET,
        workload_budget=WORKLOAD_BUDGET,
        seconds=SECONDS,
        memory_sizes=memory.sizes_up_to(largest) if measures_memory else (),
        memory_workers=min(ranks, cpus),
        device=report.device,
    )


def _fitting(wanted: tuple[str, ...], report: Any) -> tuple[str, ...]:
    """The gradient sets that fit into memory; the others are noted."""
    from hvdtune.bench.workloads.gradient_sets import WORKLOADS
    from hvdtune.launch.allocation.capacity import free_memory
    from hvdtune.settings.knobs import KNOBS

    available = free_memory()
    fitting = []
    for key in wanted:
        # Every rank holds the gradients, and at most as much again in the fusion buffers.
        gradients = 4 * WORKLOADS[key].elements()
        needed = report.ranks * (gradients + min(gradients, KNOBS["fusion_threshold"].default))
        if available is not None and needed > available:
            report.notes.append(
                f"{WORKLOADS[key].title} is left out: {report.ranks} ranks need about "
                f"{needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are available."
            )
        else:
            fitting.append(key)
    return tuple(fitting)


def _heading(args: argparse.Namespace, report: Any) -> list[str]:
    from hvdtune.cli.main import version

    report.environment.update(
        version=version(),
        host=platform.node(),
        processor=_processor(),
        python=platform.python_version(),
        arguments={
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(args).items()
            if not key.startswith("_") and (value is None or not callable(value))
        },
    )
    known = report.environment
    plural = "s" if report.cpus > 1 else ""
    place = f"{report.cpus} usable CPU{plural} ({known['processor']})"
    if report.device == "cuda":
        place = _gpus(known["gpus"])
    return [f"hvdtune {known['version']} bench: {report.ranks} ranks on {known['host']}, {place}"]


def _processor() -> str:
    """The model name from /proc/cpuinfo, or else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _write_files(args: argparse.Namespace, report: Any, heading: list[str]) -> None:
    from hvdtune.bench.report import exports, page

    if args.json:
        exports.write_json(report, args.json)
    if args.csv:
        exports.write_csv(report, args.csv)
    if args.html:
        page.write_html(report, heading, args.html)
