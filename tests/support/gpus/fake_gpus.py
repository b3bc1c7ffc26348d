"""GPUs for rank programs where there are none: the fake libraries of tests/native/fake_cuda.

`build(folder)` compiles them, `environment(...)` gives them to ranks, and in a rank `GpuArray` is
an array that any library might have made there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
COMPILER = os.environ.get("CXX", "c++")
TARGETS = ("fake_cuda", "fake_nccl", "fake_nvrtc", "fake_nvtx")


def build(folder: Path) -> Path:
    """Compile the fake libraries, or what is left to compile; the folder where they lie.

    Raises RuntimeError, with what was printed, where they cannot be compiled.
    """
    scripts = sysconfig.get_path("scripts")
    cmake = shutil.which("cmake") or shutil.which("cmake", path=scripts)
    if cmake is None or shutil.which(COMPILER) is None:
        raise RuntimeError(f"the fake libraries need cmake and {COMPILER}")
    options = {
        "HVDTUNE_BUILD_PYTHON": "OFF",
        "HVDTUNE_BUILD_TESTS": "ON",
        "HVDTUNE_BUILD_IN_BATCHES": "ON",
        "HVDTUNE_BUILD_GLOO": "OFF",
        "HVDTUNE_BUILD_CUDA": "OFF",
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_COMPILER": COMPILER,
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of `pytest -n 2` may build here
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(folder), *defines],
            [cmake, "--build", str(folder), "-j", "2", "--target", *TARGETS],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                said = done.stdout[-8000:] + done.stderr[-8000:]
                raise RuntimeError(f"{' '.join(command)}\n{said}")
    return folder / "tests/native/fake_cuda"


def environment(folder: Path, nccl: bool = False, faults: str = "") -> dict[str, str]:
    """What makes ranks take the fakes in `folder` for NVIDIA's libraries.

    With NCCL each rank has a GPU of its own.
    """
    return {
        "HVDTUNE_TEST_OWN_GPU": "1" if nccl else "0",
        "HVDTUNE_CUDA_LIBRARY": str(folder / "libcuda.so.1"),
        "HVDTUNE_NCCL_LIBRARY": str(folder / "libnccl.so.2") if nccl else "none",
        "HVDTUNE_NVRTC_LIBRARY": "none",
        "HVDTUNE_FAKE_CUDA": ",".join(filter(None, ("devices=8", faults))),
    }


def sharing(folder: Path) -> dict[str, str]:
    """The environment of ranks that share a GPU without NCCL: they read each other's memory."""
    return {
        **environment(folder),
        "HVDTUNE_SHARE_GPU": "1",
        "HVDTUNE_NVRTC_LIBRARY": str(folder / "libnvrtc.so"),
    }


def bypassing(folder: Path, limit: int, faults: str = "") -> dict[str, str]:
    """The environment of ranks with NCCL whose batches of up to `limit` bytes go past it."""
    return {
        **environment(folder, nccl=True, faults=faults),
        "HVDTUNE_NCCL_BYPASS_LIMIT": str(limit),
        "HVDTUNE_NVRTC_LIBRARY": str(folder / "libnvrtc.so"),
    }


def profiled(folder: Path) -> dict[str, str]:
    """What attaches the fake profiler, as a real one attaches itself."""
    return {"NVTX_INJECTION64_PATH": str(folder / "libnvtx.so")}


def seen_by_profiler() -> list[str]:
    """What the fake profiler of this process has noted, line by line (libnvtx.cc)."""
    library = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
    library.fake_nvtx_take.restype = library.fake_nvtx_open.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(1 << 20)
    taken = library.fake_nvtx_take(text, ctypes.c_size_t(len(text)))
    assert taken < len(text)
    assert library.fake_nvtx_open() == 0, "a range has not ended"
    return text.value.decode().splitlines()


def own_device() -> int:
    """The GPU of this rank's arrays; the fakes have one for each rank of a job, not of a host."""
    own = os.environ["HVDTUNE_TEST_OWN_GPU"] == "1"
    return int(os.environ["HOROVOD_RANK"]) if own else 0


def set_faults(faults: str) -> None:
    """From now on the fakes of this process do these things wrong."""
    os.environ["HVDTUNE_FAKE_CUDA"] = ",".join(filter(None, ("devices=8", faults)))


class CudaError(Exception):
    """What a call of the driver has answered."""


@cache
def driver() -> ctypes.CDLL:
    """The driver of a rank's environment, initialised."""
    library = ctypes.CDLL(os.environ["HVDTUNE_CUDA_LIBRARY"])
    check(library.cuInit(0))
    return library


def check(result: int) -> None:
    """Raise CudaError for anything but success."""
    if result != 0:
        raise CudaError(f"the driver answered {result}")


class Current:
    """GPU `device` is the thread's within the `with` block."""

    def __init__(self, device: int) -> None:
        self._context = _context(device)

    def __enter__(self) -> None:
        check(driver().cuCtxPushCurrent_v2(self._context))

    def __exit__(self, *ignored: object) -> None:
        check(driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


@cache
def _context(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return context


def new_stream() -> int:
    """The handle of a new stream, which does not wait for the default stream."""
    stream = ctypes.c_void_p()
    with Current(own_device()):
        check(driver().cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0))
    assert stream.value
    return stream.value


def await_stream(stream: int) -> None:
    """Wait until what the stream was given is done."""
    with Current(own_device()):
        check(driver().cuStreamSynchronize(ctypes.c_void_p(stream)))


@contextlib.contextmanager
def capturing(stream: int) -> Iterator[None]:
    """What the stream is given within the `with` block goes into a CUDA graph."""
    with Current(own_device()):
        check(driver().cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0))
        yield
        graph = ctypes.c_void_p()
        check(driver().cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)))


class GpuArray:
    """A contiguous array on a GPU, as some library's class would be.

    Its values come by `stream` where one is given: they need not be there yet.
    """

    def __init__(self, values: Any, device: int | None = None, stream: int | None = None) -> None:
        self.host = np.array(values, order="C")  # kept: a copy from it may be under way
        self.device = own_device() if device is None else device
        self.stream = stream
        self._pointer = ctypes.c_uint64(0)
        size = self.host.nbytes
        if size == 0:
            return
        with Current(self.device):
            check(driver().cuMemAlloc_v2(ctypes.byref(self._pointer), ctypes.c_size_t(size)))
            source = ctypes.c_void_p(self.host.ctypes.data)
            if stream is None:
                check(driver().cuMemcpyHtoD_v2(self._pointer, source, ctypes.c_size_t(size)))
            else:
                self._copy_later(size)

    def _copy_later(self, size: int) -> None:
        pinned = ctypes.c_void_p()
        check(driver().cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(size), 1))
        ctypes.memmove(pinned, self.host.ctypes.data, size)
        check(
            driver().cuMemcpyAsync(
                self._pointer, ctypes.c_uint64(pinned.value), ctypes.c_size_t(size),
                ctypes.c_void_p(self.stream),
            )
        )  # fmt: skip

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "data": (self._pointer.value, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }


def values_of(array: Any) -> np.ndarray:
    """What is in an array on a GPU at this moment; nothing is waited for."""
    interface = array.__cuda_array_interface__
    values = np.empty(interface["shape"], interface["typestr"])
    pointer = interface["data"][0]
    if values.nbytes:
        device = ctypes.c_int()
        attribute = 9  # of an address: the number of its GPU
        check(
            driver().cuPointerGetAttribute(
                ctypes.byref(device), attribute, ctypes.c_uint64(pointer)
            )
        )
        with Current(device.value):
            target = ctypes.c_void_p(values.ctypes.data)
            size = ctypes.c_size_t(values.nbytes)
            check(driver().cuMemcpyDtoH_v2(target, ctypes.c_uint64(pointer), size))
    return values
