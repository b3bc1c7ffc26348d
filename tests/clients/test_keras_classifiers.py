"""Models of public libraries trained with horovod.keras' optimizer and callbacks, on 2 ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.jobs.client_runs import run_client
from support.jobs.ranks import hvdtune_command, mpirun_command

pytest.importorskip("keras")
pytest.importorskip("tensorflow")  # KerasHub needs it on any backend
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRAINING = str(Path(__file__).with_name("keras_classifiers.py"))
HVDTUNE = hvdtune_command("run", "-np", "2")
EPOCHS, RATE = 3, 0.006


def train(folder: Path, packages: Path, launcher: list[str], model: str) -> list[dict]:
    """What the ranks found, once what must hold for any model has been checked."""
    found = run_client(folder, packages, [*launcher, sys.executable, TRAINING, model])
    first, second = found
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["before"] != second["before"]
    assert first["trained"] == second["trained"]  # to the last bit
    assert first["history"] == second["history"]  # which is averaged
    # 2 epochs from half of the rate, which is that of one rank, to the whole.
    assert first["history"]["lr"] == pytest.approx([0.75 * RATE, RATE, RATE])
    names = [f"{epoch + 1}.weights.h5" for epoch in range(EPOCHS)]
    assert sorted(path.name for path in folder.glob("*.h5")) == names
    return found


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look for no GPU, and say only what is wrong."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_bert_of_keras_hub(backend, client_packages, monkeypatch, tmp_path):
    pytest.importorskip(backend)
    packages = client_packages("keras-hub", "regex", "tokenizers", "sentencepiece")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    first, _ = train(tmp_path, packages, HVDTUNE, "bert")
    assert first["backend"] == backend
    assert first["history"]["loss"][-1] < first["history"]["loss"][0]


def test_an_image_classifier_under_mpirun(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    train(tmp_path, Path(), mpirun_command(2), "mobilenet")
