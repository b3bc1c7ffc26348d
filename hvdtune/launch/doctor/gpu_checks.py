"""The GPUs' part of `hvdtune doctor`: driver, GPUs, how they reach each other, NCCL, NVRTC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from hvdtune.core.libraries import cuda
from hvdtune.core.libraries.cuda import CudaLibraries, Library
from hvdtune.launch.doctor import gpus
from hvdtune.launch.doctor.gpus import Answer

SECTION = "GPUs"
_NO_ENGINE = "this version's engine reduces on the CPU only"


class Line(NamedTuple):
    """One line of the report; `doctor.Finding` is made from it."""

    section: str
    name: str
    state: str
    detail: str
    advice: str = ""


def examine(environ: Mapping[str, str]) -> list[Line]:
    """All lines. The libraries are loaded by a child process, if any was found."""
    libraries = cuda.find(environ, everything=True)
    return report(libraries, gpus.ask(libraries), cuda.engine_knows_gpus())


def report(libraries: CudaLibraries, answer: Answer, engine: bool) -> list[Line]:
    """The findings in words. `engine`: whether this build can work with GPUs."""
    lines = [_nccl(libraries.nccl, answer, engine), _driver(libraries.cuda, answer)]
    lines += [
        Line(SECTION, f"GPU {number}", "ok",
             f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}, "
             f"{gpu.memory_bytes / 2**30:.1f} GiB, {gpu.bus}")
        for number, gpu in enumerate(answer.gpus)
    ]  # fmt: skip
    if len(answer.gpus) > 1:
        lines += [_peers(answer), _paths(answer)]
    lines.append(_nvrtc(libraries.nvrtc, answer))
    return lines


def _nccl(library: Library, answer: Answer, engine: bool) -> Line:
    def line(state: str, detail: str, advice: str = "") -> Line:
        return Line("Data planes", "NCCL", state, detail, advice)

    where = f"{library.path} ({library.found})"
    if not engine:
        there = f"{where} is there, but {_NO_ENGINE}" if library.path else _NO_ENGINE
        return line("missing", there)
    if library.path is None:
        reason, _, advice = library.reason.rpartition(": ")
        if advice != cuda.NCCL_ADVICE:
            reason, advice = library.reason, ""
        return line("missing", reason, advice)
    if answer.nccl_problem:
        return line("missing", answer.nccl_problem, cuda.NCCL_ADVICE)
    version = nccl_text(answer.nccl_version)
    if answer.nccl_version < cuda.nccl_code(cuda.OLDEST_NCCL):
        oldest = ".".join(map(str, cuda.OLDEST_NCCL))
        detail = f"{version} is too old, {oldest} or newer is needed: {where}"
        return line("missing", detail, cuda.NCCL_ADVICE)
    return line("ok", f"{version}: {where}")


def nccl_text(code: int) -> str:
    """A version code of NCCL 2.9 or newer as people write it: 22707 -> 2.27.7."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _driver(library: Library, answer: Answer) -> Line:
    name = "CUDA driver"
    if library.path is None:
        reason, _, advice = library.reason.partition("; get ")
        return Line(SECTION, name, "missing", reason, advice)
    if answer.cuda_problem:
        return Line(SECTION, name, "missing", answer.cuda_problem, cuda.DRIVER_ADVICE)
    number = f"{library.version_text}, " if library.version else ""
    major, minor = answer.cuda_version
    count = len(answer.gpus)
    detail = f"{number}for CUDA {major}.{minor}, {count} GPU{'s' if count != 1 else ''}"
    if not count:
        advice = "CUDA_VISIBLE_DEVICES that names one (in a container: --gpus all)"
        return Line(SECTION, name, "missing", f"{detail}: {library.path}", advice)
    return Line(SECTION, name, "ok", f"{detail}: {library.path} ({library.found})")


def _peers(answer: Answer) -> Line:
    """Whether each GPU reaches every other's memory, which NCCL and hvdtune's own copies use."""
    numbers = range(len(answer.gpus))
    apart = [
        f"{one}-{other}"
        for one, other in combinations(numbers, 2)
        if other not in answer.gpus[one].peers or one not in answer.gpus[other].peers
    ]
    if not apart:
        return Line(SECTION, "Peer access", "ok", "every GPU reaches every other's memory")
    detail = f"none between GPUs {', '.join(apart)}: their tensors pass through host memory"
    advice = "an IOMMU that is off or in pass-through, and GPUs of one kind below one PCIe root"
    return Line(SECTION, "Peer access", "missing", detail, advice)


def _paths(answer: Answer) -> Line:
    """What connects the GPUs; a connection that many pairs have is listed once."""
    if answer.paths_problem:
        return Line(SECTION, "Topology", "missing", f"not known: {answer.paths_problem}")
    pairs = defaultdict(list)
    for pair, words in answer.paths.items():
        pairs[words].append(pair)
    if len(pairs) == 1:
        (words,) = pairs
        return Line(SECTION, "Topology", "ok", f"{words} between all GPUs")
    parts = (f"{words}: {', '.join(which)}" for words, which in pairs.items())
    return Line(SECTION, "Topology", "ok", "; ".join(parts))


def _nvrtc(library: Library, answer: Answer) -> Line:
    if library.path is None:
        reason, _, advice = library.reason.rpartition(": ")
        if advice != cuda.NVRTC_ADVICE:
            reason, advice = library.reason, ""
        return Line(
            SECTION,
            "NVRTC",
            "missing",
            f"{reason}; tensors are copied one by one without its kernels",
            advice,
        )
    if answer.nvrtc_problem:
        return Line(SECTION, "NVRTC", "missing", answer.nvrtc_problem, cuda.NVRTC_ADVICE)
    major, minor = answer.nvrtc_version
    return Line(SECTION, "NVRTC", "ok", f"{major}.{minor}: {library.path} ({library.found})")
