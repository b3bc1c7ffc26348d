"""MXNet's examples: the same training with one rank and with two, and under mpirun."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy
import pytest

pytest.importorskip("mxnet")

from support.jobs.ranks import hvdtune_command, run_under

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/mxnet"
SMALL = ("--model", "resnet18_v1", "--pixels", "32", "--steps", "2", "--fixed-statistics")
RUNS = {
    "gluon_mnist.py": ("--epochs", "1"),
    "gluon_mnist.py groups": ("--epochs", "1", "--num-groups", "2"),
    "module_mnist.py": ("--epochs", "2"),
    "resnet50.py": SMALL,
}


def weights(script: str, folder: Path, launcher: list[str], *arguments: str) -> list[numpy.ndarray]:
    saved = folder / "weights.npz"
    run_under(launcher, EXAMPLES / script, *arguments, "--save", saved, timeout=240)
    with numpy.load(saved) as found:
        return [found[name] for name in found.files]


def assert_close(found: list[numpy.ndarray], wanted: list[numpy.ndarray]) -> None:
    assert [one.shape for one in found] == [one.shape for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("run", RUNS)
def test_weights_are_those_of_one_process(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = run.split()[0]
    if script == "resnet50.py":
        # One process alone has other gradients in each run, where statistics are fixed.
        monkeypatch.setenv("MXNET_MKLDNN_ENABLED", "0")
    alone, together = (
        weights(script, tmp_path, hvdtune_command("run", "-np", str(np)), *RUNS[run])
        for np in (1, 2)
    )
    assert_close(together, alone)


@pytest.mark.long
def test_under_mpirun(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    together = weights("module_mnist.py", tmp_path, launcher, *RUNS["module_mnist.py"])
    alone = weights("module_mnist.py", tmp_path, [], *RUNS["module_mnist.py"])
    assert_close(together, alone)
