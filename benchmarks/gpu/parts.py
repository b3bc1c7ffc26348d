"""The parts of the checks: each asks a machine one question and returns an `Outcome`."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpu.jobs import HERE, ROOT, JobFailed, Machine, last_lines, output_of
from gpu.outcome import FAILED, PASSED, SKIPPED, Outcome

from hvdtune.autotune.report import log
from hvdtune.bootstrap import python_command

#: Goals.
COPY_SHARE = 0.7
TIMELINE_SHARE = 0.02
NOTICED_SECONDS = 2.0
TUNE_BUDGET = "100s"

BUILD = ROOT / "build" / "gpu"
_DIGITS = re.compile(r"final test accuracy ([\d.]+); weights identical on all ranks")


class Part(NamedTuple):
    """`name`: for --only. `ask` may raise `JobFailed`, which fails the part."""

    name: str
    title: str
    ask: Callable[[Machine], Outcome]


class Plane(NamedTuple):
    """A path for tensors. `share`: as in `Machine.launcher`. `unsaid`: text that a rank prints if
    it takes another path."""

    name: str
    changes: Mapping[str, str] = {}
    share: bool | None = None
    unsaid: str = ""


_NO_NCCL = {"HVDTUNE_NCCL_LIBRARY": "none"}
_STAGED = "tensors on GPUs travel through host memory"
PLANES = (
    Plane("NCCL", unsaid=_STAGED),
    Plane("CUDA IPC", _NO_NCCL, share=True, unsaid=_STAGED),
    Plane("host", _NO_NCCL, share=False),
)
#: The largest limit, and the text that a rank prints if no batch bypasses NCCL.
_BYPASS = {"HVDTUNE_NCCL_BYPASS_LIMIT": str(1 << 20)}
_NO_BYPASS = "short batches also use NCCL"


def planes_of(machine: Machine, count: int) -> Iterator[Plane]:
    """The paths that tensors of `count` ranks can take."""
    yield from PLANES
    if 2 <= count <= machine.gpus:
        yield Plane("past NCCL", _BYPASS, unsaid=_STAGED)


def conformance(machine: Machine) -> Outcome:
    """All operations and types with 1, 2 and 4 ranks: over NCCL, by reading each other's memory,
    and through host memory."""
    rows = [("ranks", "tensors travel over", "results compared", "wrong")]
    wrong: list[str] = []
    for count in (1, 2, 4):
        for plane in planes_of(machine, count):
            variables = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", **plane.changes}
            try:
                found = machine.result_of(
                    "conformance.py", count, changes=variables, share=plane.share, seconds=120,
                    may_fail=True, unsaid=plane.unsaid,
                )  # fmt: skip
            except JobFailed as error:
                wrong.append(f"{count} ranks, {plane.name}: {error}")
                rows.append((str(count), plane.name, "-", "failed"))
                continue
            wrong += [f"{count} ranks, {plane.name}: {text}" for text in found["failures"]]
            rows.append((str(count), plane.name, str(found["cases"]), str(len(found["failures"]))))
    if wrong:
        return Outcome(FAILED, f"{len(wrong)} wrong; the first: {wrong[0]}.", rows)
    return Outcome(PASSED, "every element equals float64 on the CPU, within rounding.", rows)


def digits(machine: Machine) -> Outcome:
    """examples/digits.py on the GPU."""
    command = [*machine.launcher(2), sys.executable, str(ROOT / "examples" / "digits.py")]
    command += ["--device", machine.device, "--epochs", "20"]
    said = output_of(command, machine.variables(), 240)
    found = _DIGITS.search(said)
    if not found:
        return Outcome(FAILED, f"the training did not print its result: {last_lines(said)}.")
    state = PASSED if float(found[1]) > 0.95 else FAILED
    return Outcome(state, f"2 ranks, 20 epochs: test accuracy {found[1]}, equal weights.")


def build_program() -> Path:
    """benchmarks/gpu/pack_bandwidth.cc, compiled. Raises `JobFailed`."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DHVDTUNE_BUILD_PYTHON=OFF", "-DHVDTUNE_BUILD_BENCHMARKS=ON"]
    output_of(configure, os.environ, 120)
    words = ["cmake", "--build", str(BUILD), "--target", "pack_bandwidth"]
    output_of([*words, "--parallel", str(os.cpu_count() or 1)], os.environ, 400)
    return BUILD / "pack_bandwidth"


def gradient_sizes() -> str:
    """Bytes of ResNet-50's gradients, in the order of a backward pass, one a line."""
    import math

    from hvdtune.bench.workloads.gradient_sets import WORKLOADS

    shapes = (shape for _, shape in WORKLOADS["resnet50"].backward_order())
    return "".join(f"{4 * math.prod(shape)}\n" for shape in shapes)


def copies(machine: Machine, program: Callable[[], Path] = build_program) -> Outcome:
    """Pack and unpack of ResNet-50's gradients, compared with one copy of as many bytes."""
    command = [str(program()), machine.cuda, machine.nvrtc or "-"]
    said = output_of(command, os.environ, 120, given=gradient_sizes())
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    names = ("pack", "unpack", "pack_scaled", "unpack_scaled")
    shares = {name: found["copy"] / found[name] for name in names if name in found}
    rows = [("what", "ms", "GB/s", "of a copy")]
    for name in ("copy", *shares):
        speed = f"{found['bytes'] / found[name] / 1e6:.0f}"
        rows.append((name, f"{found[name]:.3f}", speed, f"{found['copy'] / found[name]:.0%}"))
    worst = min(shares, key=lambda name: shares[name])
    said = (
        f"{found['tensors']} tensors, {found['bytes'] / 1e6:.0f} MB, kernels: {found['kernels']}; "
        f"the slowest is {worst} with {shares[worst]:.0%} of a copy's speed; the goal is "
        f"{COPY_SHARE:.0%}."
    )
    good = found["same"] and len(shares) == len(names) and shares[worst] >= COPY_SHARE
    return Outcome(PASSED if good else FAILED, said, rows)


def sanitizer(machine: Machine, program: Callable[[], Path] = build_program) -> Outcome:
    """compute-sanitizer's memcheck and racecheck on the kernels."""
    tool = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if tool is None:
        return Outcome(SKIPPED, "there is no compute-sanitizer; it comes with the CUDA toolkit.")
    command = [str(program()), machine.cuda, machine.nvrtc or "-", "--check"]
    for check in ("memcheck", "racecheck"):
        words = [tool, "--tool", check, "--error-exitcode", "3", *command]
        output_of(words, os.environ, 200, given=gradient_sizes())
    return Outcome(PASSED, "neither memcheck nor racecheck reports an error.")


def comparison(machine: Machine) -> Outcome:
    """Fused by hvdtune, one operation a tensor, DistributedDataParallel's buckets."""
    # Ranks of one GPU take turns of milliseconds, 161 times a step if each tensor is an operation.
    few = ["--rounds", "4", "--steps", "2"] if machine.sharing(2) else []
    found = machine.result_of("steps.py", 2, few)
    ours = found["hvdtune"]["step_s"]
    rows = [("way", "step, ms", "of hvdtune's time", "thread's CPU, ms", "process's CPU, ms")]
    for name, one in found.items():
        cells = [one["step_s"], one["thread_s"], one["process_s"]]
        step, thread, process = (f"{1e3 * seconds:.2f}" for seconds in cells)
        rows.append((name, step, f"{one['step_s'] / ours:.2f}", thread, process))
    ratio = found["per tensor"]["step_s"] / ours
    said = (
        f"ResNet-50's gradients on 2 ranks: one operation a tensor takes {ratio:.2f} times, "
        f"buckets take {found['buckets']['step_s'] / ours:.2f} times as long as hvdtune."
    )
    return Outcome(PASSED if ratio > 1 else FAILED, said, rows)


def bypass(machine: Machine) -> Outcome:
    """Short allreduces that bypass NCCL, compared with those over NCCL, on two GPUs."""
    if machine.gpus < 2:
        return Outcome(SKIPPED, "it needs two GPUs that can access each other's memory.")
    times: list[dict[int, float]] = []
    for changes in ({}, _BYPASS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "bench.json")
            words = ["bench", "--device", "cuda", "-np", "2", "--workload", "none"]
            words += ["-b", "1K", "-e", "1M", "-f", "4", "--json", str(path)]
            command = [*python_command("hvdtune.cli.main"), *words]
            said = output_of(command, machine.variables(changes), 120)
            document = json.loads(path.read_text())
        for line in said.splitlines():
            if changes and _NO_BYPASS in line:
                return Outcome(SKIPPED, f"{line[line.index(_NO_BYPASS) :]}.")
        if document["wrong"]:
            return Outcome(FAILED, f"{document['wrong']} results were wrong.")
        times.append({
            int(row["size_bytes"]): float((row["in_place"] or row["out_of_place"])["time"]["p50"])
            for row in document["sweep"]
        })  # fmt: skip
    by_nccl, past = times
    rows = [("bytes", "over NCCL, µs", "past NCCL, µs", "ratio")]
    for size in sorted(by_nccl):
        both = by_nccl[size], past[size]
        rows.append((str(size), *(f"{1e6 * one:.1f}" for one in both), f"{both[0] / both[1]:.2f}"))
    faster = [size for size in by_nccl if past[size] < by_nccl[size]]
    if not faster:
        return Outcome(FAILED, "2 ranks: no size is faster past NCCL than over it.", rows)
    return Outcome(PASSED, f"2 ranks: faster past NCCL up to {max(faster)} bytes.", rows)


def timeline(machine: Machine) -> Outcome:
    """Steps with and without a recording, taking turns."""
    times: dict[bool, list[float]] = {False: [], True: []}
    arguments = ["--only", "hvdtune", "--rounds", "5", "--steps", "20"]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(6):
            recorded = turn % 2 == 1
            path = str(Path(folder, f"{turn}.json"))
            changes = {"HOROVOD_TIMELINE": path} if recorded else {}
            found = machine.result_of("steps.py", 2, arguments, changes=changes, seconds=90)
            times[recorded].append(found["hvdtune"]["step_s"])
    plain, recorded_s = (statistics.median(times[which]) for which in (False, True))
    share = recorded_s / plain - 1
    said = (
        f"a step takes {1e3 * plain:.3f} ms, and {1e3 * recorded_s:.3f} ms with a timeline: "
        f"{share:+.1%}; the limit is {TIMELINE_SHARE:+.0%}."
    )
    return Outcome(PASSED if share <= TIMELINE_SHARE else FAILED, said)


def autotune(machine: Machine) -> Outcome:
    """`hvdtune tune` to its end: which numbers of NCCL's streams and thread blocks it has tried.

    For ranks that share a GPU the number of thread blocks is fixed, so it tries only streams.
    """
    searched = ["num_nccl_streams"] + (["nccl_max_ctas"] if machine.gpus >= 2 else [])
    with tempfile.TemporaryDirectory() as folder:
        csv, result = (str(Path(folder, name)) for name in ("log.csv", "result.json"))
        words = ["tune", "-np", "2", *machine.sharing(2), "--budget", TUNE_BUDGET]
        words += ["--autotune-log-file", csv, "--autotune-store", "", "--"]
        words += [sys.executable, str(HERE / "steps.py"), "--only", "hvdtune", "--rounds", "60"]
        words += ["--steps", "20", "--device", machine.device, "--result", result]
        said = output_of([*python_command("hvdtune.cli.main"), *words], machine.variables(), 240)
        rows = log.read(Path(csv))
    verdicts = [row["decision"] for row in rows if row["phase"] == "final"]
    if not verdicts:
        return Outcome(FAILED, f"the log has no last row: {last_lines(said)}")
    tried = {name: sorted({int(row[name]) for row in rows if row[name]}) for name in searched}
    texts = [f"{name} tried with {', '.join(map(str, tried[name]))}" for name in searched]
    is_searched = machine.device == "cpu" or all(len(tried[name]) > 1 for name in searched)
    told = f"{len(rows)} samples; {'; '.join(texts)}; {verdicts[-1]}."
    return Outcome(PASSED if is_searched else FAILED, told)


def death(machine: Machine) -> Outcome:
    """kill -9 of a rank; the time until the other rank has raised."""
    script = str(HERE.parent / "kill.py")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "kill.json")
        command = [sys.executable, script, "--np", "2", "--rounds", "5", "--device", machine.device]
        command += machine.sharing(2)
        output_of([*command, "--json", str(result)], machine.variables(), 200)
        found = json.loads(result.read_text())
    longest = max(found["raised_s"])
    said = (
        f"in {len(found['raised_s'])} kills, the survivor raised at most {longest:.2f} s after the "
        f"kill; the limit is {NOTICED_SECONDS:g} s."
    )
    return Outcome(PASSED if longest < NOTICED_SECONDS else FAILED, said)


def plugin(machine: Machine) -> Outcome:
    """Measures algorithms and protocols, and makes the file for NCCL's tuner plugin from them."""
    if machine.device == "cpu":
        return Outcome(SKIPPED, "NCCL has no algorithms on the CPU.")
    python = python_command("hvdtune.cli.main")
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for algorithm in ("Ring", "Tree"):
            for protocol in ("LL", "Simple"):
                path = Path(folder, f"{algorithm}-{protocol}.json")
                settings = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
                ctas = {"NCCL_MIN_CTAS": "2", "NCCL_MAX_CTAS": "2"}
                words = ["bench", "--device", "cuda", "-np", "2", "--workload", "none"]
                words += machine.sharing(2)
                words += ["-b", "1K", "-e", "16M", "-f", "16", "--json", str(path)]
                output_of([*python, *words], machine.variables({**settings, **ctas}), 120)
                files.append(str(path))
        target = Path(folder, "tuner.csv")
        words = ["autotune", "export", "--nccl-tuner", str(target), *files]
        output_of([*python, *words], machine.variables(), 60)
        rules = [line for line in target.read_text().splitlines() if not line.startswith("#")]
    return Outcome(PASSED, f"{len(rules)} rules: {'; '.join(rules)}.")


PARTS = (
    Part("conformance", "Conformance", conformance),
    Part("digits", "examples/digits.py", digits),
    Part("copies", "Pack and unpack", copies),
    Part("sanitizer", "compute-sanitizer", sanitizer),
    Part("comparison", "Fused, per tensor, buckets", comparison),
    Part("bypass", "Short batches past NCCL", bypass),
    Part("timeline", "Overhead of the timeline", timeline),
    Part("autotune", "Autotune", autotune),
    Part("plugin", "NCCL's tuner plugin", plugin),
    Part("death", "A killed rank", death),
)
