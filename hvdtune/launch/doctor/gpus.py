"""What the CUDA driver, NCCL, NVRTC and NVML say about themselves, asked in a child process.

The asking process loads none of NVIDIA's libraries: one that is broken or hangs ends or delays
only the child. `main` is the child's side; it prints one JSON document, that of `Answer`.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from hvdtune.bootstrap import python_command
from hvdtune.core.libraries.cuda import CudaLibraries

# cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY = (75, 76)
#: For the child: a driver that starts its GPUs for the first time takes seconds for each.
SECONDS = 60.0


class Gpu(NamedTuple):
    """One GPU that CUDA shows. `bus` is its PCI address, `peers` those whose memory it reaches."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    bus: str
    peers: tuple[int, ...]


class Answer(NamedTuple):
    """The libraries' answers. A text named `…_problem` is empty if the library works.

    `cuda_version` and `nvrtc_version` are pairs such as (12, 4); `nccl_version` is the library's
    code. `paths` says in words how each pair of GPUs, such as "0-1", is connected, as far as NVML
    tells.
    """

    cuda_version: tuple[int, int] = (0, 0)
    cuda_problem: str = ""
    gpus: tuple[Gpu, ...] = ()
    nccl_version: int = 0
    nccl_problem: str = ""
    nvrtc_version: tuple[int, int] = (0, 0)
    nvrtc_problem: str = ""
    paths: dict[str, str] = {}  # noqa: RUF012 never changed
    paths_problem: str = ""


def ask(libraries: CudaLibraries, seconds: float = SECONDS) -> Answer:
    """Ask those of the three libraries that were found; report why the others were not."""
    if not any(library.path for library in libraries):
        return _unasked(libraries)
    command = python_command(__name__, *(library.path or "" for library in libraries))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(libraries, f"no answer in {seconds:g} s")
    # Libraries may print anything, also while the child ends.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return _failed(libraries, said[-1] if said else f"the process that asked ended with {how}")
    return _missing_named(_decode(json.loads(lines[-1])), libraries)


def _decode(document: dict[str, Any]) -> Answer:
    found = (
        Gpu(name, (capability[0], capability[1]), memory, bus, tuple(peers))
        for name, capability, memory, bus, peers in document.pop("gpus")
    )
    for key in ("cuda_version", "nvrtc_version"):
        document[key] = tuple(document[key])
    return Answer(**document, gpus=tuple(found))


def _unasked(libraries: CudaLibraries) -> Answer:
    return _missing_named(Answer(), libraries)


def _failed(libraries: CudaLibraries, why: str) -> Answer:
    answer = Answer(cuda_problem=why, nccl_problem=why, nvrtc_problem=why, paths_problem=why)
    return _missing_named(answer, libraries)


def _missing_named(answer: Answer, libraries: CudaLibraries) -> Answer:
    missing = {
        f"{name}_problem": library.reason
        for name, library in libraries._asdict().items()
        if library.path is None
    }
    return answer._replace(**missing)


# ---- the child ----


class _Problem(Exception):
    """A library's complaint."""


def main(arguments: Sequence[str]) -> int:
    """Ask the libraries (paths of libcuda, NCCL and NVRTC, "" for none); print the answers."""
    cuda, nccl, nvrtc = arguments
    answer: dict[str, Any] = Answer()._asdict()
    _answered(answer, "cuda_problem", _ask_cuda, cuda)
    _answered(answer, "nccl_problem", _ask_nccl, nccl)
    _answered(answer, "nvrtc_problem", _ask_nvrtc, nvrtc)
    if len(answer["gpus"]) > 1:
        _answered(answer, "paths_problem", lambda _: _ask_nvml(answer["gpus"]), "NVML")
    print(json.dumps(answer))
    return 0


def _answered(
    answer: dict[str, Any], problem: str, question: Callable[[str], dict[str, Any]], path: str
) -> None:
    if not path:
        return
    try:
        answer.update(question(path))
    except (OSError, AttributeError, _Problem) as error:  # not loadable, or a function is missing
        answer[problem] = f"{path} does not work: {error}" if path != "NVML" else str(error)


def _ask_cuda(path: str) -> dict[str, Any]:
    cuda = ctypes.CDLL(path)

    def call(name: str, *arguments: Any) -> None:
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            known = cuda.cuGetErrorString(result, ctypes.byref(text)) == 0 and text.value
            words = text.value.decode(errors="replace") if known and text.value else "unknown"
            raise _Problem(f"{name} fails with {result} ({words})")

    def number(name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        call(name, ctypes.byref(value), *arguments)
        return value.value

    call("cuInit", 0)
    version = number("cuDriverGetVersion")
    found = {"cuda_version": (version // 1000, version % 1000 // 10)}
    devices = [number("cuDeviceGet", index) for index in range(number("cuDeviceGetCount"))]
    return {**found, "gpus": [_gpu(call, number, devices, place) for place in range(len(devices))]}


def _gpu(
    call: Callable[..., None], number: Callable[..., int], devices: list[int], place: int
) -> Gpu:
    device = devices[place]
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    memory = ctypes.c_size_t()
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    call("cuDeviceGetPCIBusId", bus, len(bus), device)
    major, minor = (number("cuDeviceGetAttribute", which, device) for which in _CAPABILITY)
    peers = tuple(
        index
        for index, peer in enumerate(devices)
        if peer != device and number("cuDeviceCanAccessPeer", device, peer)
    )
    texts = (buffer.value.decode(errors="replace") for buffer in (name, bus))
    said, address = texts
    return Gpu(said, (major, minor), memory.value, address, peers)


def _ask_nccl(path: str) -> dict[str, Any]:
    version = ctypes.c_int()
    result = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    if result != 0:
        raise _Problem(f"ncclGetVersion fails with {result}")
    return {"nccl_version": version.value}


def _ask_nvrtc(path: str) -> dict[str, Any]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    result = ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if result != 0:
        raise _Problem(f"nvrtcVersion fails with {result}")
    return {"nvrtc_version": (major.value, minor.value)}


def _ask_nvml(gpus: Sequence[Gpu]) -> dict[str, Any]:
    """How each pair is connected, in nvidia-smi's order from near to far."""
    try:
        import pynvml
    except ImportError:
        raise _Problem("the package nvidia-ml-py is missing; pip install 'hvdtune[gpu]'") from None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus.encode()) for gpu in gpus]
        pairs = combinations(range(len(gpus)), 2)
        return {"paths": dict(_paths(pynvml, handles, pairs))}
    except pynvml.NVMLError as error:
        raise _Problem(f"NVML fails: {error}") from None


def _paths(
    nvml: Any, handles: list[Any], pairs: Iterator[tuple[int, int]]
) -> Iterator[tuple[str, str]]:
    levels = {
        nvml.NVML_TOPOLOGY_INTERNAL: "one board",
        nvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
        nvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "a PCIe host bridge",
        nvml.NVML_TOPOLOGY_NODE: "PCIe within a NUMA node",
        nvml.NVML_TOPOLOGY_SYSTEM: "PCIe between NUMA nodes",
    }
    for one, other in pairs:
        ends = handles[one], handles[other]
        linked = nvml.nvmlDeviceGetP2PStatus(*ends, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if linked == nvml.NVML_P2P_STATUS_OK:
            yield f"{one}-{other}", "NVLink"
        else:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(*ends)
            yield f"{one}-{other}", levels.get(level, f"level {level}")
