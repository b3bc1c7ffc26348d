"""Which of NVIDIA's libraries are chosen, among files of the test's own."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest
from support.gpus.cuda_answers import forget_what_is_loaded

from hvdtune.core.libraries import cuda
from hvdtune.core.libraries.cuda import Library, Places, find
from hvdtune.settings import knobs


class Machine:
    """Folders that stand for a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site, self.system = root / "site", root / "lib"
        self.mapped: list[str] = []
        self.environ: dict[str, str] = {}
        for folder in (self.site, self.system):
            folder.mkdir()

    def library(self, path: str, content: bytes = b"") -> str:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x7fELF" + content)
        return str(file)

    def link(self, path: str, to: str) -> str:
        (self.root / path).symlink_to(to)
        return str(self.root / path)

    def nccl_wheel(self, version: str, cuda: int = 12) -> str:
        (self.site / f"nvidia_nccl_cu{cuda}-{version}.dist-info").mkdir()
        return self.library("site/nvidia/nccl/lib/libnccl.so.2")

    def find(self, **named: str) -> cuda.CudaLibraries:
        places = Places(
            self.mapped,
            [str(self.site), ""],
            [str(self.system)],
            str(self.root / "ld.so.cache"),
            str(self.root / "driver"),
        )
        return find({**self.environ, **named}, places=places, everything=True)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_machine_without_any_is_told_what_is_missing_and_how_to_get_it(machine):
    found = machine.find()
    assert [library.path for library in found] == [None, None, None]
    assert found.cuda.reason.startswith("there is no NVIDIA driver on this machine")
    assert "--gpus all" in found.cuda.reason
    assert "pip install nvidia-nccl-cu12" in found.nccl.reason
    assert "pip install nvidia-cuda-nvrtc-cu12" in found.nvrtc.reason
    assert found.nccl_code == 0


def test_the_driver_is_the_system_s_and_its_file_tells_the_version(machine):
    machine.library("lib/libcuda.so.550.54.14")
    path = machine.link("lib/libcuda.so.1", "libcuda.so.550.54.14")
    assert machine.find().cuda == Library(path, "", (550, 54, 14), "the system")


def test_the_kernel_driver_tells_the_version_where_the_name_does_not(machine):
    machine.library("lib/libcuda.so.1")
    (machine.root / "driver").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\nGCC version:\n"
    )
    assert machine.find().cuda.version_text == "570.86.15"


def test_the_loader_s_list_is_read(machine):
    driver = machine.library("odd/place/libcuda.so.1")
    listed = f"ld.so-1.7.0\0libcuda.so.1\0{driver}\0libfoo.so\0{machine.root}/libcuda.so.1\0"
    (machine.root / "ld.so.cache").write_bytes(b"\x07\x03\0" + listed.encode())
    assert machine.find().cuda.path == driver


def test_a_wheel_comes_before_the_system_and_tells_its_version(machine):
    machine.library("lib/libnccl.so.2.25.1")
    machine.link("lib/libnccl.so.2", "libnccl.so.2.25.1")
    wheel = machine.nccl_wheel("2.27.7")
    found = machine.find()
    assert found.nccl == Library(wheel, "", (2, 27, 7), "a wheel")
    assert found.nccl_code == 22707


def test_the_newest_of_a_folder_is_taken(machine):
    machine.library("lib/libnccl.so.2.19.3")
    newest = machine.library("lib/libnccl.so.2.26.2")
    assert machine.find().nccl == Library(newest, "", (2, 26, 2), "the system")


def test_what_the_process_has_loaded_comes_first(machine):
    machine.nccl_wheel("2.27.7")
    loaded = machine.library("torch/libnccl.so.2", b"...NCCL version 2.21.5+cuda12.4\0")
    machine.mapped = ["[heap]", loaded, loaded, "/lib/libc.so.6"]
    assert machine.find().nccl == Library(loaded, "", (2, 21, 5), "loaded by this process")


def test_a_second_nccl_is_refused(machine):
    loaded = machine.library("torch/libnccl.so.2", b"NCCL version 2.21.5+cuda12.4")
    other = machine.library("other/libnccl.so.2", b"NCCL version 2.27.5+cuda12.9")
    machine.mapped = [loaded]
    refused = machine.find(HVDTUNE_NCCL_LIBRARY=other).nccl
    assert refused.path is None
    assert refused.reason.startswith(
        f"HVDTUNE_NCCL_LIBRARY is {other}, but this process has loaded {loaded} already"
    )
    assert machine.find(HVDTUNE_NCCL_LIBRARY=loaded).nccl.path == loaded


def test_two_loaded_nccls_need_a_choice(machine):
    first, second = (machine.library(f"{name}/libnccl.so.2") for name in "ab")
    machine.mapped = [first, second]
    refused = machine.find().nccl
    assert refused.path is None
    assert refused.reason == (
        f"this process has loaded 2 NCCLs, {first} and {second}: name the one to use with "
        "HVDTUNE_NCCL_LIBRARY"
    )


def test_one_file_by_two_names_is_one_nccl(machine):
    first = machine.library("a/libnccl.so.2.27.7")
    machine.mapped = [first, machine.link("a/libnccl.so.2", "libnccl.so.2.27.7")]
    assert machine.find().nccl.version == (2, 27, 7)


def test_a_nccl_that_is_too_old_is_refused_and_none_further_down_is_taken(machine):
    wheel = machine.nccl_wheel("2.18.6")
    machine.library("lib/libnccl.so.2.27.7")
    refused = machine.find().nccl
    assert refused.path is None
    assert refused.reason.startswith(f"{wheel} is NCCL 2.18.6, and 2.19 or newer is needed: pip")
    assert machine.find().nccl_code == 0


def test_a_nccl_whose_version_nothing_tells_is_left_to_who_loads_it(machine):
    path = machine.library("lib/libnccl.so.2")
    assert machine.find().nccl == Library(path, "", (), "the system")


def test_nvrtc_of_the_wheels_and_of_the_system(machine):
    machine.library("lib/libnvrtc.so.12")
    assert machine.find().nvrtc.found == "the system"
    older = machine.library("site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    machine.library("site/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9")
    assert machine.find().nvrtc == Library(older, "", (12,), "a wheel")
    newer = machine.library("site/nvidia/cu13/lib/libnvrtc.so.13")
    assert machine.find().nvrtc == Library(newer, "", (13,), "a wheel")


def test_nvrtc_that_is_too_new_for_the_driver_is_passed_over(machine):
    machine.library("lib/libcuda.so.550.54.14")
    machine.link("lib/libcuda.so.1", "libcuda.so.550.54.14")
    newer = machine.library("site/nvidia/cu13/lib/libnvrtc.so.13")
    refused = machine.find().nvrtc
    assert refused.path is None
    assert refused.reason.startswith(
        f"{newer} makes code for CUDA 13, which needs a driver of 580.65 or newer, and this one is "
        "550.54.14"
    )
    older = machine.library("site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    assert machine.find().nvrtc.path == older


def test_ld_library_path_comes_before_the_system(machine):
    machine.library("lib/libcuda.so.1")
    own = machine.library("own/libcuda.so.1")
    machine.environ["LD_LIBRARY_PATH"] = f"/nowhere::{machine.root}/own"
    assert machine.find().cuda == Library(own, "", (), "LD_LIBRARY_PATH")


@pytest.mark.parametrize("name", ["cuda", "nccl", "nvrtc"])
def test_a_named_library_is_the_only_candidate(machine, name):
    named = machine.library("mine/any-name.so")
    variable = f"HVDTUNE_{name.upper()}_LIBRARY"
    machine.library("lib/libcuda.so.1")
    assert getattr(machine.find(**{variable: named}), name) == Library(named, "", (), variable)
    text = machine.root / "text"
    text.write_text("no library")
    for path, why in (
        ("/nowhere/lib.so", "which is not a file"),
        (str(text), "which is not a shared library"),
        ("none", "is used"),
    ):
        refused = getattr(machine.find(**{variable: path}), name)
        assert refused.path is None
        assert refused.reason.startswith(f"{variable} is {path}")
        assert refused.reason.endswith(why)


def test_what_the_user_names_by_the_settings_wins_over_the_environment(machine):
    named = machine.library("mine/libcuda.so.1")
    places = Places([], [], [])
    found = find({"HVDTUNE_CUDA_LIBRARY": "none"}, {"HVDTUNE_CUDA_LIBRARY": named}, places)
    assert found.cuda.path == named


def test_files_that_are_no_libraries_are_passed_over(machine):
    (machine.system / "libcuda.so.1").write_text("/* GNU ld script */")
    (machine.system / "libnccl.so.2").mkdir()
    assert machine.find().cuda.path is None
    assert machine.find().nccl.path is None


def mathematics() -> str:
    """The C library's: Python has loaded it, and loading a copy beside it does nothing."""
    fields = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return next(line[5] for line in fields if len(line) == 6 and "/libm.so" in line[5])


def test_without_a_driver_a_start_looks_for_nothing_else(machine):
    wheel = machine.nccl_wheel("2.27.7")
    places = Places([], [str(machine.site)], [])
    found = find({}, places=places)
    assert found.nccl == found.nvrtc == Library(None, "there is no CUDA driver to use it with")
    driver = machine.library("mine/libcuda.so.1")
    assert find({"HVDTUNE_CUDA_LIBRARY": driver}, places=places).nccl.path == wheel


def test_this_process_s_memory_is_looked_at(tmp_path, monkeypatch):
    """A library that is really loaded: a harmless one under NCCL's name."""
    forget_what_is_loaded(monkeypatch)
    copy = tmp_path / "libnccl.so.2"
    copy.write_bytes(Path(mathematics()).read_bytes())
    before = find(everything=True).nccl
    loaded = ctypes.CDLL(str(copy))
    assert loaded._handle
    found = find(everything=True).nccl
    assert found.path == str(copy)
    assert found.found == "loaded by this process"
    assert before.path != str(copy)
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(loaded._handle))
    assert find(everything=True).nccl.path != str(copy)


def test_who_uses_gpus_has_loaded_the_driver(tmp_path):
    module = mathematics()
    copy = tmp_path / "libcuda.so.1"
    copy.write_bytes(Path(module).read_bytes())
    before = cuda.driver_is_loaded()
    loaded = ctypes.CDLL(str(copy))
    assert cuda.driver_is_loaded()
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(loaded._handle))
    assert cuda.driver_is_loaded() is before


def test_the_settings_are_named_by_the_variables(machine):
    for name in ("cuda", "nccl", "nvrtc"):
        assert knobs.KNOBS[f"{name}_library"].env == f"HVDTUNE_{name.upper()}_LIBRARY"


def test_python_finds_the_same_without_being_told_the_places():
    found = find(dict(os.environ))
    assert all((library.path is None) == bool(library.reason) for library in found), sys.path
