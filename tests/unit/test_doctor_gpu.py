"""The GPUs' part of `hvdtune doctor`: child processes that load libraries of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
import types

from support.gpus.cuda_answers import compiled, forget_what_is_loaded, library

from hvdtune.core.libraries import cuda
from hvdtune.core.libraries.cuda import CudaLibraries, Library
from hvdtune.launch.doctor import doctor, gpu_checks, gpus
from hvdtune.launch.doctor.gpus import Answer, Gpu

MISSING = cuda.find({}, places=cuda.Places([], [], [], "/none", "/none"), everything=True)


def all_of(path: str) -> CudaLibraries:
    driver = Library(path, "", (550, 54, 14), "the system")
    return CudaLibraries(driver, Library(path, "", (), "a wheel"), Library(path, "", (), "a wheel"))


def told(libraries: CudaLibraries, answer: Answer, engine: bool = True) -> dict[str, tuple]:
    lines = gpu_checks.report(libraries, answer, engine)
    assert all(line.detail and not line.detail.endswith(".") for line in lines)
    return {line.name: (line.state, line.detail, line.advice) for line in lines}


@compiled
def test_everything_that_is_there_is_told(tmp_path):
    path = library(tmp_path)
    answer = gpus.ask(all_of(path))
    assert answer.cuda_version == (12, 4)
    assert answer.gpus[1] == Gpu("Test GPU B", (9, 0), 80 << 30, "0000:0B:00.0", (0,))
    said = told(all_of(path), answer)
    assert said["CUDA driver"] == (
        "ok", f"550.54.14, for CUDA 12.4, 2 GPUs: {path} (the system)", "",
    )  # fmt: skip
    assert said["GPU 0"][1] == "Test GPU A, compute capability 9.0, 80.0 GiB, 0000:0A:00.0"
    assert said["Peer access"] == ("ok", "every GPU reaches every other's memory", "")
    assert said["NCCL"] == ("ok", f"2.27.7: {path} (a wheel)", "")
    assert said["NVRTC"] == ("ok", f"12.9: {path} (a wheel)", "")
    # NVML knows nothing of these GPUs.
    assert said["Topology"][0] == "missing"
    assert said["Topology"][1].startswith("not known: ")


@compiled
def test_gpus_that_do_not_reach_each_other_are_named(tmp_path):
    path = library(tmp_path, GPUS=3, NEIGHBOURS=0)
    state, detail, _ = told(all_of(path), gpus.ask(all_of(path)))["Peer access"]
    assert state == "missing"
    assert "none between GPUs 0-1, 0-2, 1-2" in detail


@compiled
def test_a_driver_without_gpus_says_so(tmp_path):
    path = library(tmp_path, FAILS=100)
    said = told(all_of(path), gpus.ask(all_of(path)))
    assert said["CUDA driver"][:2] == (
        "missing",
        f"{path} does not work: cuInit fails with 100 (no CUDA-capable device is detected)",
    )
    assert said["NCCL"][0] == "ok"
    folder = tmp_path / "none"
    folder.mkdir()
    path = library(folder, GPUS=0)
    state, detail, advice = told(all_of(path), gpus.ask(all_of(path)))["CUDA driver"]
    assert (state, detail) == ("missing", f"550.54.14, for CUDA 12.4, 0 GPUs: {path}")
    assert "CUDA_VISIBLE_DEVICES" in advice


@compiled
def test_a_library_that_takes_the_process_with_it_is_reported(tmp_path):
    path = library(tmp_path, FAILS=9)
    said = told(all_of(path), gpus.ask(all_of(path)))
    assert said["CUDA driver"][0] == said["NCCL"][0] == "missing"
    assert said["CUDA driver"][1] == "the process that asked ended with signal 9"


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"\x7fELF and nothing else")
    said = told(all_of(str(path)), gpus.ask(all_of(str(path))))
    for name in ("CUDA driver", "NCCL", "NVRTC"):
        assert said[name][0] == "missing"
        assert said[name][1].startswith(f"{path} does not work: ")
    assert "pip install nvidia-nccl-cu12" in said["NCCL"][2]


def test_without_any_library_no_process_is_started(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    answer = gpus.ask(MISSING)
    said = told(MISSING, answer)
    assert said["CUDA driver"][1].startswith("there is no NVIDIA driver on this machine")
    assert said["CUDA driver"][2].startswith("NVIDIA's driver for Linux")
    assert said["NCCL"] == ("missing", "NCCL was not found", cuda.NCCL_ADVICE)
    assert said["NVRTC"][2] == cuda.NVRTC_ADVICE


def test_an_engine_that_knows_no_gpus_says_so(tmp_path):
    libraries = all_of("/lib/libnccl.so.2")
    state, detail, _ = told(libraries, Answer(nccl_version=22707), engine=False)["NCCL"]
    assert state == "missing"
    assert detail == (
        "/lib/libnccl.so.2 (a wheel) is there, but this version's engine reduces on the CPU only"
    )


def test_a_nccl_that_turns_out_to_be_too_old():
    state, detail, _ = told(all_of("/lib/libnccl.so.2"), Answer(nccl_version=21806))["NCCL"]
    assert state == "missing"
    assert detail.startswith("2.18.6 is too old, 2.19 or newer is needed")


def test_a_library_that_never_answers(monkeypatch):
    def never(*arguments, timeout, **others):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", never)
    answer = gpus.ask(all_of("/lib/libcuda.so.1"), seconds=3)
    assert answer.cuda_problem == "no answer in 3 s"


def test_what_a_library_prints_beside_the_answer_is_passed_over(monkeypatch):
    def answered(said: str) -> Answer:
        child = [sys.executable, "-c", f"print({said!r})"]
        monkeypatch.setattr(gpus, "python_command", lambda *words: child)
        return gpus.ask(all_of("/lib/libcuda.so.1"))

    document = json.dumps(Answer(nccl_version=22707)._asdict())
    assert answered(f"hello\n{document}\ngoodbye").nccl_version == 22707
    assert answered("hello").cuda_problem == "the process that asked ended with status 0"


class FakeNvml(types.ModuleType):
    """Four GPUs: 0-1 by NVLink, 2-3 below one switch."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0

    def nvmlInit(self):
        return None

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        return int(bus.decode()[-1])

    def nvmlDeviceGetP2PStatus(self, one, other, what):
        assert what == 2
        return 0 if {one, other} == {0, 1} else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return 10 if {one, other} == {2, 3} else 50


def test_the_topology_is_nvml_s(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    four = tuple(
        Gpu("GPU", (9, 0), 1 << 30, f"bus{i}", tuple({0, 1, 2, 3} - {i})) for i in range(4)
    )
    answer = Answer((12, 4), gpus=four, **gpus._ask_nvml(four))
    said = told(all_of("/lib/libcuda.so.1"), answer)
    assert said["Topology"][1] == (
        "NVLink: 0-1; PCIe between NUMA nodes: 0-2, 0-3, 1-2, 1-3; one PCIe switch: 2-3"
    )
    linked = answer._replace(gpus=four[:2], paths={"0-1": "NVLink"})
    assert told(all_of("/lib/x"), linked)["Topology"][1] == "NVLink between all GPUs"


@compiled
def test_the_whole_report_keeps_sections_together(tmp_path, monkeypatch):
    path = library(tmp_path)
    forget_what_is_loaded(monkeypatch)
    monkeypatch.setattr(cuda, "engine_knows_gpus", lambda: True)
    environ = {f"HVDTUNE_{name}_LIBRARY": path for name in ("CUDA", "NCCL", "NVRTC")}
    findings = doctor.examine("1", environ)
    sections = [finding.section for finding in findings]
    assert len(list(dict.fromkeys(sections))) == sum(
        one != other for one, other in zip(sections, ["", *sections], strict=False)
    )
    nccl = next(finding for finding in findings if finding.name == "NCCL")
    assert nccl.section == "Data planes"
    assert nccl.detail == f"2.27.7: {path} (HVDTUNE_NCCL_LIBRARY)"
    assert "GPUs:" in doctor.as_text(findings)


@compiled
def test_what_is_built_follows_the_libraries(tmp_path, monkeypatch):
    path = library(tmp_path)
    forget_what_is_loaded(monkeypatch)
    for name in ("CUDA", "NCCL"):
        monkeypatch.setenv(f"HVDTUNE_{name}_LIBRARY", path)
    monkeypatch.setattr(cuda, "engine_knows_gpus", lambda: False)
    assert cuda.nccl_built() == 0
    assert cuda.cuda_built() is False
    monkeypatch.setattr(cuda, "engine_knows_gpus", lambda: True)
    assert cuda.nccl_built() == 22707
    assert cuda.cuda_built() is True
    monkeypatch.setenv("HVDTUNE_NCCL_LIBRARY", "none")
    assert cuda.nccl_built() == 0
    monkeypatch.setenv("HVDTUNE_CUDA_LIBRARY", "none")
    assert cuda.cuda_built() is False


def test_a_nccl_that_is_not_wanted_needs_no_advice():
    places = cuda.Places([], [], [], "/none", "/none")
    found = cuda.find({"HVDTUNE_NCCL_LIBRARY": "none"}, places=places, everything=True)
    words = "HVDTUNE_NCCL_LIBRARY is none: no NCCL is used"
    assert told(found, gpus.ask(found))["NCCL"] == ("missing", words, "")
