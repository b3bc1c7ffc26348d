"""The checks that need a GPU: `benchmarks/gpu_checks.sh [--only NAME,…] [--output FILE]`.

Takes about 10 minutes and writes docs/gpu-results.md. If there is no GPU, or something else that it
needs is missing, it prints one sentence and exits with 1. It also exits with 1 if a part fails, but
still writes the page. `--device cpu` tries the parts that work with tensors in CPU memory, and
writes no page unless --output names one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder that contains `gpu`
    for package in ("hvdtune", "torch"):
        if importlib.util.find_spec(package) is None:
            sys.exit(
                f"benchmarks/gpu_checks.sh: {sys.executable} has no {package}; name a Python that "
                "has hvdtune and PyTorch: PYTHON=… benchmarks/gpu_checks.sh"
            )

from gpu import outcome, parts
from gpu.jobs import ROOT, JobFailed, Machine
from gpu.outcome import FAILED, Outcome, Results

PAGE = ROOT / "docs" / "gpu-results.md"
#: Parts that cannot be tried without a GPU.
ON_GPU_ONLY = ("copies", "sanitizer", "bypass", "plugin")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu_checks.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    names = [part.name for part in parts.PARTS]
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=names, metavar="NAME,…",
        help=f"of {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"(default: {PAGE.name})")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.only if name not in names]
    if unknown:
        parser.error(f"--only {unknown[0]}: there is no such part; give some of {', '.join(names)}")
    if args.output is None and args.device == "cuda":
        args.output = PAGE
    return args


def machine_for(device: str) -> tuple[Machine, dict[str, str]]:
    """The machine to run on, and its description. Raises `hvdtune.bench.cuda.Unavailable`."""
    import torch

    import hvdtune

    said = {"date": date.today().isoformat(), "hvdtune": hvdtune.__version__}
    said["PyTorch"] = torch.__version__
    said["system"] = f"{platform.platform()}, Python {platform.python_version()}"
    if device == "cpu":
        return Machine(gpus=0, device="cpu"), {"GPUs": "none, tensors in CPU memory", **said}
    from hvdtune.bench import cuda
    from hvdtune.core.libraries import cuda as cuda_libraries
    from hvdtune.launch.doctor.gpu_checks import nccl_text

    found, libraries = cuda.look(os.environ), cuda_libraries.find()
    said["GPUs"] = f"{len(found.gpus)}: {', '.join(dict.fromkeys(found.gpus))}"
    said["driver"] = libraries.cuda.version_text
    said["NCCL"] = nccl_text(found.nccl) if found.nccl else "none"
    paths = libraries.cuda.path or "", libraries.nvrtc.path or ""
    return Machine(len(found.gpus), "cuda", *paths), said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit status."""
    args = parse(arguments)
    from hvdtune.bench.cuda import Unavailable

    try:
        machine, said = machine_for(args.device)
    except Unavailable as error:
        print(f"benchmarks/gpu_checks.sh: {error}.", file=sys.stderr)
        return 1
    results = Results(said)
    for part in parts.PARTS:
        if part.name in args.only and not (args.device == "cpu" and part.name in ON_GPU_ONLY):
            begin = time.monotonic()
            print(f"{part.title} …", end=" ", flush=True)
            found = ask(part, machine)
            results.parts.append((part.title, found, time.monotonic() - begin))
            print(f"{found.state}: {found.said}", flush=True)
    if args.output:
        args.output.write_text(outcome.page(results), encoding="utf-8")
        print(f"written to {args.output}")
    if results.failed:
        print(f"benchmarks/gpu_checks.sh: failed: {', '.join(results.failed)}.", file=sys.stderr)
    return 1 if results.failed else 0


def ask(part: parts.Part, machine: Machine) -> Outcome:
    """The part's outcome; a job that fails makes the part fail."""
    try:
        return part.ask(machine)
    except JobFailed as error:
        return Outcome(FAILED, f"{error}.")


if __name__ == "__main__":
    sys.exit(main())
