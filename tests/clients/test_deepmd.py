"""DeePMD-kit on hvdtune: `dp --tf train` on 2 ranks, for made particles and their forces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.jobs.client_runs import run_client
from support.jobs.ranks import hvdtune_command, mpirun_command

pytest.importorskip("deepmd")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRAINING = str(Path(__file__).with_name("deepmd_training.py"))
JOB = [*hvdtune_command("run", "-np", "2"), sys.executable, TRAINING]
FRAMES, ATOMS, STEPS, LENGTH = 8, 12, 30, 8.0
NOWHERE = Path()  # DeePMD-kit is installed in the tests' environment


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look for no GPU, and use a thread each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("DP_INTRA_OP_PARALLELISM_THREADS", "DP_INTER_OP_PARALLELISM_THREADS"):
        monkeypatch.setenv(name, "1")


def write_system(folder: Path) -> None:
    """Atoms in a periodic box, near a lattice; each pair has the energy exp(-distance)."""
    (folder / "set.000").mkdir(parents=True)
    generator = np.random.default_rng(3)
    lattice = np.stack(np.meshgrid(*[range(3)] * 3, indexing="ij"), -1).reshape(-1, 3)[:ATOMS]
    places = 2.6 * lattice + generator.normal(0.0, 0.25, (FRAMES, ATOMS, 3))
    between = places[:, :, None] - places[:, None]
    between -= LENGTH * np.round(between / LENGTH)
    distances = np.linalg.norm(between, axis=-1) + np.eye(ATOMS)
    energies = np.exp(-distances) * (1 - np.eye(ATOMS))
    forces = ((energies / distances)[..., None] * between).sum(2)
    for name, values in {
        "coord": places.reshape(FRAMES, -1),
        "energy": energies.sum((1, 2)) / 2,
        "force": forces.reshape(FRAMES, -1),
        "box": np.tile(LENGTH * np.eye(3).ravel(), (FRAMES, 1)),
    }.items():
        np.save(folder / "set.000" / f"{name}.npy", values)
    (folder / "type.raw").write_text("0\n1\n1\n" * (ATOMS // 3), encoding="utf-8")
    (folder / "type_map.raw").write_text("O\nH\n", encoding="utf-8")


def train(folder: Path, command: list[str], frames: int) -> tuple[list[dict], np.ndarray]:
    """What the ranks end with, and DeePMD's learning curve: step, errors, learning rate.

    Each rank's batches have so many frames.
    """
    folder.mkdir()
    write_system(folder / "system")
    descriptor = {
        "type": "se_e2_a",
        "sel": [8, 16],
        "rcut_smth": 0.5,
        "rcut": 4.0,
        "neuron": [4, 8],
        "axis_neuron": 4,
        "seed": 1,
    }
    settings = {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": descriptor,
            "fitting_net": {"neuron": [12, 12], "seed": 1},
        },
        "learning_rate": {
            "type": "exp",
            "decay_steps": 50,
            "start_lr": 0.003,
            "stop_lr": 1e-3,
            "scale_by_worker": "none",
        },
        "loss": {
            "type": "ener",
            "start_pref_e": 0.02,
            "limit_pref_e": 1,
            "start_pref_f": 1000,
            "limit_pref_f": 1,
        },
        "training": {
            "training_data": {"systems": ["system"], "batch_size": frames},
            "numb_steps": STEPS,
            "seed": 10,
            "disp_freq": 10,
            "save_freq": STEPS,
        },
    }
    (folder / "input.json").write_text(json.dumps(settings), encoding="utf-8")
    found = run_client(folder, NOWHERE, [*command, "input.json"])
    return found, np.loadtxt(folder / "lcurve.out")


def test_two_ranks_train_like_one(tmp_path):
    """All ranks' batches are all frames: they learn what one process does."""
    [alone], expected = train(tmp_path / "alone", [sys.executable, TRAINING], FRAMES)
    (first, second), curve = train(tmp_path / "job", JOB, FRAMES)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["trained"] == second["trained"]  # to the last bit
    assert first["trained"].keys() == alone["trained"].keys()
    for name, value in first["trained"].items():
        np.testing.assert_allclose(value, alone["trained"][name], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(curve, expected, rtol=0.011)  # it has 3 digits
    assert curve[-1, 1] < curve[0, 1] / 2


@pytest.mark.parametrize("launcher", ["hvdtune run", "mpirun"])
def test_ranks_with_batches_of_their_own_stay_equal(launcher, tmp_path):
    job = JOB if launcher == "hvdtune run" else [*mpirun_command(2), sys.executable, TRAINING]
    (first, second), curve = train(tmp_path / "job", job, 2)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert len(first["trained"]) > 10
    assert first["trained"] == second["trained"]
    assert curve[-1, 1] < curve[0, 1] / 2
