"""Which of NVIDIA's libraries this process uses for tensors on GPUs, and if none, why.

It looks for three libraries and loads none: the CUDA driver (`libcuda.so.1`, which comes with the
kernel's driver), NCCL (`libnccl.so.2`, 2.19 or newer) and NVRTC, the run-time compiler. The first
place that has one decides: a setting's path; this process, if it has loaded one already; the wheels
of NVIDIA on `sys.path`, which PyTorch uses; `LD_LIBRARY_PATH`; the system. A process that has an
NCCL never gets a second one.
"""

from __future__ import annotations

import fnmatch
import mmap
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import hvdtune._native as _native

Version = tuple[int, ...]

OLDEST_NCCL: Version = (2, 19)
#: A value of the settings below that means: use no such library.
NONE = "none"
#: How to get one; each ends a sentence.
DRIVER_ADVICE = "NVIDIA's driver for Linux (in a container: start it with its GPUs, --gpus all)"
NCCL_ADVICE = (
    "pip install nvidia-nccl-cu12 (nvidia-nccl-cu13 with CUDA 13), or the distribution's libnccl2; "
    "HVDTUNE_NCCL_LIBRARY names one elsewhere"
)
NVRTC_ADVICE = (
    "pip install nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc with CUDA 13), or the CUDA toolkit; "
    "HVDTUNE_NVRTC_LIBRARY names one elsewhere"
)

# The first driver of CUDA's major versions (CUDA's release notes, table 3): an older one does not
# run NVRTC's code.
_DRIVER_OF_CUDA = {12: (525, 60, 13), 13: (580, 65, 6)}
_MAPPED = re.compile(r" (/.*/lib(?:cuda|nccl|nvrtc)[^/\n]*)$", re.MULTILINE)
_NCCL_TEXT = re.compile(rb"NCCL version (\d+)\.(\d+)\.(\d+)")


class Library(NamedTuple):
    """One library that was looked for.

    `path` is None if there is none to use; `reason` then is a sentence without its full stop.
    `version` is empty if only the library itself, once loaded, could tell. `found` says how it
    was found.
    """

    path: str | None
    reason: str = ""
    version: Version = ()
    found: str = ""

    @property
    def version_text(self) -> str:
        """The version as people write it; "" if it is not known."""
        return ".".join(map(str, self.version))


class CudaLibraries(NamedTuple):
    """The three libraries. `cuda` is needed for any work with GPUs, `nccl` for reducing on them,
    `nvrtc` for copies of many tensors in one launch."""

    cuda: Library
    nccl: Library
    nvrtc: Library

    @property
    def nccl_code(self) -> int:
        """NCCL's version code: 21903 for 2.19.3. 0 without NCCL, or if it is not known."""
        return nccl_code(self.nccl.version) if self.nccl.path else 0


class Places(NamedTuple):
    """Where to look, in order. `mapped`: files of this process's memory; `site`: folders of Python
    packages; `cache`: the loader's list of libraries; `driver`: the kernel driver's description."""

    mapped: Sequence[str]
    site: Sequence[str]
    system: Sequence[str]
    cache: str = "/etc/ld.so.cache"
    driver: str = "/proc/driver/nvidia/version"


class _Kind(NamedTuple):
    """A library to look for. Names are patterns of `Path.glob`; wheels are folders of `site`."""

    title: str
    variable: str
    names: tuple[str, ...]
    loaded: re.Pattern[str]
    wheels: tuple[str, ...]
    missing: str


_CUDA = _Kind(
    "the CUDA driver",
    "HVDTUNE_CUDA_LIBRARY",
    ("libcuda.so.1",),
    re.compile(r"/libcuda\.so[.\d]*$"),
    (),
    f"there is no NVIDIA driver on this machine: libcuda.so.1 was not found; get {DRIVER_ADVICE}",
)
_NCCL = _Kind(
    "NCCL",
    "HVDTUNE_NCCL_LIBRARY",
    ("libnccl.so.2", "libnccl.so.2.*"),
    re.compile(r"/libnccl\.so[.\d]*$"),
    ("nvidia/nccl/lib",),
    f"NCCL was not found: {NCCL_ADVICE}",
)
_NVRTC = _Kind(
    "NVRTC",
    "HVDTUNE_NVRTC_LIBRARY",
    ("libnvrtc.so.[1-9][0-9]", "libnvrtc.so.[1-9][0-9].*", "libnvrtc-*.so.[1-9][0-9]"),
    re.compile(r"/libnvrtc(-[0-9a-f]{6,})?\.so[.\d]*$"),
    # CUDA 13's wheels share one folder; older ones have one per library; older PyTorch has its own.
    ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"),
    f"NVRTC was not found: {NVRTC_ADVICE}",
)


def engine_knows_gpus() -> bool:
    """Whether this build's engine supports tensors on GPUs."""
    return bool(getattr(_native, "gpus", False))


def driver_is_loaded() -> bool:
    """Whether this process has loaded the CUDA driver, as every user of GPUs has."""
    return any(_CUDA.loaded.search(path) for path in _mapped())


def cuda_built() -> bool:
    """Whether tensors on GPUs can be given to hvdtune here: the engine supports them, and there is
    a driver."""
    return engine_knows_gpus() and find().cuda.path is not None


def nccl_built() -> int:
    """The version code of the NCCL that would carry tensors on GPUs; 0 if none would."""
    libraries = find()
    if not engine_knows_gpus() or libraries.cuda.path is None or libraries.nccl.path is None:
        return 0
    return libraries.nccl_code or _ask_version(libraries.nccl.path)


def _ask_version(path: str) -> int:
    """The version, found by loading it as the engine would; 0 if that fails."""
    import ctypes

    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value


def find(
    environ: Mapping[str, str] = os.environ,
    named: Mapping[str, str] | None = None,
    places: Places | None = None,
    *,
    everything: bool = False,
) -> CudaLibraries:
    """Look for the libraries; takes a few file operations, starts nothing and loads nothing.

    Args:
        environ: the process's environment.
        named: paths that the user gives, by the settings' variables, in place of `environ`'s.
        places: for tests; otherwise this process and this machine.
        everything: look for NCCL and NVRTC also if there is no driver; otherwise every start of
            a job on a machine without GPUs would pay for that.
    """
    places = Places(_mapped(), sys.path, _system_folders()) if places is None else places
    wanted = {**environ, **(named or {})}
    cuda = _find_cuda(wanted, places)
    if cuda.path is None and not everything:
        useless = Library(None, "there is no CUDA driver to use it with")
        return CudaLibraries(cuda, useless, useless)
    return CudaLibraries(
        cuda, _find_nccl(wanted, places), _find_nvrtc(wanted, places, cuda.version)
    )


def _find_cuda(wanted: Mapping[str, str], places: Places) -> Library:
    for path, how in _candidates(_CUDA, wanted, places):
        if path is None:
            return Library(None, how)
        return Library(path, "", _version_of_name(path) or _kernel_driver(places), how)
    return Library(None, _CUDA.missing)


def _find_nccl(wanted: Mapping[str, str], places: Places) -> Library:
    """The first one found. A newer one in a later place would be a second one as soon as PyTorch
    loads the first."""
    mapped = _loaded(_NCCL, places)
    for path, how in _candidates(_NCCL, wanted, places):
        if path is None:
            return Library(None, how)
        others = [other for other in mapped if not _same(other, path)]
        if others and how == _NCCL.variable:
            return Library(
                None,
                f"{_NCCL.variable} is {path}, but this process has loaded {' and '.join(others)} "
                "already, and two NCCLs in one process disturb each other: unset it, or name the "
                "loaded one",
            )
        if others:
            return Library(
                None,
                f"this process has loaded {len(mapped)} NCCLs, {' and '.join(mapped)}: name the "
                f"one to use with {_NCCL.variable}",
            )
        version = nccl_version(path)
        if version and version[: len(OLDEST_NCCL)] < OLDEST_NCCL:
            text, oldest = (".".join(map(str, numbers)) for numbers in (version, OLDEST_NCCL))
            return Library(
                None, f"{path} is NCCL {text}, and {oldest} or newer is needed: {NCCL_ADVICE}"
            )
        return Library(path, "", version, how)
    return Library(None, _NCCL.missing)


def _find_nvrtc(wanted: Mapping[str, str], places: Places, driver: Version) -> Library:
    """The first whose code the driver can run."""
    too_new = ""
    for path, how in _candidates(_NVRTC, wanted, places):
        if path is None:
            return Library(None, how)
        version = _version_of_name(path)
        needed = _DRIVER_OF_CUDA.get(version[0]) if version else None
        if driver and needed and driver < needed:
            too_new = too_new or (
                f"{path} makes code for CUDA {version[0]}, which needs a driver of "
                f"{'.'.join(map(str, needed[:2]))} or newer, and this one is "
                f"{'.'.join(map(str, driver))}: {NVRTC_ADVICE}"
            )
            continue
        return Library(path, "", version, how)
    return Library(None, too_new or _NVRTC.missing)


def _candidates(
    kind: _Kind, wanted: Mapping[str, str], places: Places
) -> Iterator[tuple[str | None, str]]:
    """Files and how they were found, the preferred first; None and why, if none may be used."""
    named = wanted.get(kind.variable, "").strip()
    if named:
        yield _named(kind, named)
        return
    for path in _loaded(kind, places):
        yield path, "loaded by this process"
    folders = [(os.path.join(site, wheel), "a wheel") for site in places.site if site
               for wheel in kind.wheels]  # fmt: skip
    paths = wanted.get("LD_LIBRARY_PATH", "").split(":")
    folders += [(path, "LD_LIBRARY_PATH") for path in paths if path]
    yield from _in_folders(kind, folders)
    yield from ((path, "the system") for path in _cached(kind, places))
    yield from _in_folders(kind, [(folder, "the system") for folder in places.system])


def _in_folders(kind: _Kind, folders: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for folder, how in folders:
        for name in kind.names:
            found = [name]
            if "*" in name or "[" in name:
                # The newest of several first.
                listed = fnmatch.filter(_entries(folder), name)
                found = sorted(listed, key=lambda file: _age(folder, file), reverse=True)
            for file in found:
                path = os.path.join(folder, file)
                if _is_library(path):
                    yield path, how


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _age(folder: str, file: str) -> tuple[Version, str]:
    return _version_of_name(os.path.join(folder, file)), file


def _named(kind: _Kind, path: str) -> tuple[str | None, str]:
    if path.lower() == NONE:
        return None, f"{kind.variable} is {path}: no {kind.title.removeprefix('the ')} is used"
    if not os.path.isfile(path):
        return None, f"{kind.variable} is {path}, which is not a file"
    if not _is_library(path):
        return None, f"{kind.variable} is {path}, which is not a shared library"
    return path, kind.variable


def _loaded(kind: _Kind, places: Places) -> list[str]:
    """Those mapped into the process's memory, each file once."""
    by_file = {os.path.realpath(path): path for path in places.mapped if kind.loaded.search(path)}
    return list(by_file.values())


def _cached(kind: _Kind, places: Places) -> list[str]:
    """Those that the loader's list names: absolute paths that end with a NUL, in any version of the
    file's format."""
    try:
        listed = Path(places.cache).read_bytes()
    except OSError:
        return []
    stem = kind.names[0].partition(".so")[0].encode()
    if stem not in listed:
        return []
    texts = re.findall(rb"/[^\0]*/" + re.escape(stem) + rb"\.so[.\d]+(?=\0)", listed)
    places_of = [os.path.split(os.fsdecode(text)) for text in dict.fromkeys(texts)]
    fitting = [
        (folder, file)
        for folder, file in places_of
        if any(fnmatch.fnmatch(file, name) for name in kind.names)
        and _is_library(os.path.join(folder, file))
    ]
    return [os.path.join(*one) for one in sorted(fitting, key=lambda one: _age(*one), reverse=True)]


def nccl_code(version: Version) -> int:
    """A version as NCCL_VERSION of nccl.h gives it since 2.9: 21903 for 2.19.3; 0 for ()."""
    if not version:
        return 0
    major, minor, patch = (*version, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch


def nccl_version(path: str) -> Version:
    """The version of a libnccl that is not loaded, from its name, its wheel, or a text in the file.

    Empty if none of them tells.
    """
    version = _version_of_name(path)
    if len(version) == 3:
        return version
    wheels = [
        entry.name
        for folder in Path(path).parents[3:4]
        if path.startswith(os.path.join(folder, "nvidia", "nccl"))
        for entry in folder.glob("nvidia_nccl_cu*-*.dist-info")
    ]
    if len(wheels) == 1:
        numbers = re.findall(r"\d+", wheels[0].partition("-")[2])
        return tuple(int(number) for number in numbers[:3])
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            said = _NCCL_TEXT.search(content)
            return tuple(int(number) for number in said.groups()) if said else ()
    except (OSError, ValueError):  # gone, or empty
        return ()


def _version_of_name(path: str) -> Version:
    """The longest version after ".so" in the name, or in the name of the file that it links to:
    libcuda.so.1 -> libcuda.so.535.129.03 is 535.129.3. If there is only an interface's number, it
    is that: libnvrtc.so.12 is 12."""
    texts = (os.path.basename(name).partition(".so.")[2] for name in (path, os.path.realpath(path)))
    versions = [_numbers(text) for text in texts]
    best = max(versions, key=len)
    return best if len(best) > 1 or "libnvrtc" in path else ()


def _numbers(text: str) -> Version:
    return tuple(int(part) for part in text.split(".")) if re.fullmatch(r"[\d.]*\d", text) else ()


def _kernel_driver(places: Places) -> Version:
    try:
        said = Path(places.driver).read_text(errors="replace")
    except OSError:
        return ()
    number = re.search(r"\b(\d{3,}(?:\.\d+)+)\b", said)
    return _numbers(number[1]) if number else ()


def _is_library(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _mapped() -> list[str]:
    """Files mapped into this process's memory that may be one of the libraries."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return list(dict.fromkeys(_MAPPED.findall(file.read())))
    except OSError:
        return []


def _system_folders() -> list[str]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    folders = [f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64"]
    toolkit = ["/usr/local/cuda/lib64", f"/usr/local/cuda/targets/{os.uname().machine}-linux/lib"]
    # The last one is the driver's folder under WSL.
    return [
        *folders,
        os.path.join(sys.prefix, "lib"),
        *toolkit,
        "/usr/local/lib",
        "/usr/lib/wsl/lib",
    ]
