"""`hvdtune bench --device cuda`: what it says where something is missing, and how many ranks."""

from __future__ import annotations

import importlib.machinery

import pytest
from support.gpus.cuda_answers import compiled, forget_what_is_loaded, library

from hvdtune.bench import cuda
from hvdtune.bench.cuda import Found, Unavailable
from hvdtune.bench.metrics import Summary
from hvdtune.bench.report import advice
from hvdtune.bench.report.results import Measurement, Report, WorkloadRow
from hvdtune.cli import main
from hvdtune.core.libraries import cuda as cuda_libraries


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose libraries are the test's own, with a PyTorch that has CUDA."""

    class Machine:
        torch = tmp_path / "torch" / "version.py"

        def libraries(self, **defined: int) -> dict[str, str]:
            path = library(tmp_path, **defined)
            return {f"HVDTUNE_{name}_LIBRARY": path for name in ("CUDA", "NCCL", "NVRTC")}

        def torch_says(self, text: str | None) -> None:
            self.torch.parent.mkdir(exist_ok=True)
            if text is not None:
                self.torch.write_text(text)

    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(Machine.torch))
    Machine.torch.parent.mkdir()
    Machine.torch.write_text("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(cuda, "find_spec", lambda name: spec)
    monkeypatch.setattr(cuda_libraries, "engine_knows_gpus", lambda: True)
    forget_what_is_loaded(monkeypatch)
    return Machine()


@compiled
def test_what_is_there_is_found(machine):
    found = cuda.look(machine.libraries(GPUS=2))
    assert found == Found(("Test GPU A", "Test GPU B"), 22707, ())


@compiled
def test_without_nccl_a_note_says_what_happens(machine):
    environ = {**machine.libraries(), "HVDTUNE_NCCL_LIBRARY": "none"}
    found = cuda.look(environ)
    assert found.nccl == 0
    assert found.notes == (
        "without NCCL, tensors pass through host memory: HVDTUNE_NCCL_LIBRARY is none: no NCCL is "
        "used",
    )


def test_no_driver(machine):
    with pytest.raises(Unavailable, match="HVDTUNE_CUDA_LIBRARY is none: no CUDA driver is used"):
        cuda.look({"HVDTUNE_CUDA_LIBRARY": "none"})


@compiled
def test_a_driver_that_finds_no_device(machine):
    with pytest.raises(Unavailable, match=r"cuInit fails with 100 \(no CUDA-capable .* get NVIDIA"):
        cuda.look(machine.libraries(FAILS=100))


@compiled
def test_no_gpu(machine):
    with pytest.raises(Unavailable, match="shows no GPU: let CUDA_VISIBLE_DEVICES name one"):
        cuda.look(machine.libraries(GPUS=0))


@compiled
def test_a_pytorch_without_cuda(machine):
    machine.torch_says("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip = '6'\n")
    with pytest.raises(Unavailable, match="the PyTorch that is installed has no CUDA: pip install"):
        cuda.look(machine.libraries())


@compiled
def test_no_pytorch(machine, monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="PyTorch, whose tensors are measured, is not installed"):
        cuda.look(machine.libraries())


@compiled
def test_an_engine_for_the_cpu_only(machine, monkeypatch):
    monkeypatch.setattr(cuda_libraries, "engine_knows_gpus", lambda: False)
    with pytest.raises(Unavailable, match="measure with --device cpu"):
        cuda.look(machine.libraries())


def test_this_pytorch_is_read_as_what_it_is():
    import torch

    if torch.version.cuda is not None:
        cuda._require_torch()
    else:
        with pytest.raises(Unavailable, match="has no CUDA"):
            cuda._require_torch()


@pytest.mark.parametrize(
    ("gpus", "asked", "share", "ranks"),
    [
        (4, None, False, 4),
        (4, 2, False, 2),
        (1, None, True, 2),
        (1, 4, True, 4),
        (1, None, False, 1),
    ],
)
def test_ranks(gpus, asked, share, ranks):
    assert cuda.ranks_for(Found(("GPU",) * gpus, 22707), asked, share) == ranks


def test_too_many_ranks():
    with pytest.raises(Unavailable, match=r"2 ranks need as many GPUs, and there is 1: give -np 1"):
        cuda.ranks_for(Found(("GPU",), 22707), 2, False)


def test_the_command_ends_in_one_sentence(capsys, monkeypatch):
    monkeypatch.setenv("HVDTUNE_CUDA_LIBRARY", "none")
    assert main.main(["bench", "--device", "cuda"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "hvdtune bench: --device cuda: HVDTUNE_CUDA_LIBRARY is none: no CUDA driver is used.\n"
    )
    assert main.main(["bench", "--device", "cuda", "--op", "barrier"]) == 1
    assert "a barrier has no tensor: leave --device out." in capsys.readouterr().err


def test_advice_does_not_compare_gpus_with_cpus():
    time = Summary(**dict.fromkeys(Summary.__dataclass_fields__, 1.0))
    step = Measurement(time, 0, 1.0, 1.0, None, None)
    report = Report(ranks=8, cpus=2, device="cuda")
    report.workloads.append(WorkloadRow("tiny", "1000 tiny", 1000, 1, 4, "float32", step))
    assert advice.advise(report) == "nothing stands out in what was measured."
