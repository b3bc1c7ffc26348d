"""The kernels for GPUs, through NVIDIA's compilers: no registers are spilled, and enough are left.

Compilers run without a GPU. Where there are none, these tests skip:
`tests/support/gpus/device_kernels.sh` installs NVIDIA's from PyPI and runs them. What the kernels
compute is tested on the host, by tests/native.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.tiers import EVERY

pytestmark = pytest.mark.long

NATIVE = Path(__file__).parents[2] / "native"
SOURCE = NATIVE / "device" / "kernels" / "kernels.cu"
NVRTC = Path(__file__).parents[1] / "support" / "gpus" / "nvrtc_compile.py"
ARCHITECTURES = (80, 90, 100)
#: So that at least 3 blocks of 256 threads are on a multiprocessor, which has 65 536 registers.
MOST_REGISTERS = 85
# A macro of the source, and the kernels that each of its uses makes.
MACROS = {"HVD_KERNELS": ("pack", "unpack"), "HVD_REDUCTION": ("reduce",), "HVD_MEETING": ("meet",)}


def kernels() -> set[str]:
    """The names of all kernels of the source."""
    uses = re.findall(r"^(HVD_\w+)\((\w+), ", SOURCE.read_text(), re.MULTILINE)
    return {f"hvdtune_{way}_{kind}" for macro, kind in uses for way in MACROS[macro]}


def toolkits() -> Iterator[Path]:
    for variable in ("HVDTUNE_TEST_CUDA", "CUDA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parents[1]
    for folder in filter(None, sys.path):
        yield from Path(folder).glob("nvidia/cu1[2-9]")
    yield Path("/usr/local/cuda")


def tool(*names: str) -> Path:
    """The first of a toolkit's files that is there; skips where none is."""
    for folder in toolkits():
        for name in names:
            for path in sorted(folder.glob(name)):
                return path
    pytest.skip(
        f"there is no {names[0]} of CUDA's; tests/support/gpus/device_kernels.sh installs one"
    )


class Kernel(NamedTuple):
    """What ptxas says of a kernel: bytes of spilled registers and of stack, and registers."""

    spilled: int
    stack: int
    registers: int


def told(said: str) -> dict[str, Kernel]:
    """By name, of ptxas' words under -v."""
    pattern = re.compile(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        re.DOTALL,
    )
    return {
        name: Kernel(int(stores) + int(loads), int(stack), int(registers))
        for name, stack, stores, loads, registers in pattern.findall(said)
    }


def run(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def by_nvcc(folder: Path, architecture: int, *options: str, source: Path = SOURCE) -> str:
    return run(
        tool("bin/nvcc"), f"-arch=sm_{architecture}", "-cubin", "-std=c++17", f"-I{NATIVE}",
        "-Xptxas", "-v", "-Werror", "all-warnings", *options, "-o", folder / "k.cubin", source,
    )  # fmt: skip


def judge(found: dict[str, Kernel]) -> None:
    assert set(found) == kernels()
    assert len(found) >= 44
    for name, kernel in found.items():
        assert kernel.spilled == kernel.stack == 0, (name, kernel)
        assert kernel.registers <= MOST_REGISTERS, (name, kernel)


@pytest.mark.parametrize("architecture", ARCHITECTURES if EVERY else ARCHITECTURES[-1:])
def test_nvcc_spills_nothing(tmp_path, architecture):
    judge(told(by_nvcc(tmp_path, architecture)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_nvrtc_compiles_at_run_time_spills_nothing(tmp_path, architecture):
    library, ptxas = tool("lib/libnvrtc.so.*", "lib64/libnvrtc.so.*"), tool("bin/ptxas")
    ptx = tmp_path / "k.ptx"
    run(
        sys.executable, NVRTC, library, SOURCE, ptx, f"--gpu-architecture=compute_{architecture}",
        "-std=c++17", f"-I{NATIVE}",
    )  # fmt: skip
    said = run(ptxas, "-v", f"-arch=sm_{architecture}", "-o", tmp_path / "k.cubin", ptx)
    judge(told(said))


def test_spilled_registers_would_be_seen(tmp_path):
    """The same words are read of a kernel that keeps more numbers than it has registers for."""
    source = tmp_path / "spilling.cu"
    lines = "".join(f"  v[{i}] = data[{i} * 256 + threadIdx.x];\n" for i in range(96))
    uses = "".join(
        f"  data[{95 - i} * 256 + threadIdx.x] = v[{i}] * v[{95 - i}];\n" for i in range(96)
    )
    source.write_text(
        'extern "C" __global__ void __launch_bounds__(256, 8) spilling(double* data) {\n'
        f"  double v[96];\n{lines}  __syncthreads();\n{uses}}}\n"
    )
    found = told(by_nvcc(tmp_path, 90, source=source))
    assert found["spilling"].spilled > 0
