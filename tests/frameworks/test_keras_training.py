"""Keras' DistributedOptimizer on every backend: what one process gives, N processes give."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("keras", reason="Keras is not installed")

from rank_programs import keras_fit, keras_training
from support.jobs.ranks import run_ranks
from support.tiers import EVERY

BACKENDS = ("torch", "jax", "tensorflow")
TIMEOUT = 600.0


def environment(backend: str, **more: str) -> dict[str, str]:
    """For ranks. Skips the test if the backend is not installed."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return {
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        **more,
    }


@pytest.mark.parametrize(
    ("backend", "ranks"),
    [
        *((backend, 2) for backend in BACKENDS),
        *(pytest.param(backend, 1, marks=pytest.mark.long) for backend in BACKENDS),
        pytest.param("torch", 4, marks=pytest.mark.long),
    ],
)
def test_training(backend: str, ranks: int) -> None:
    env = environment(backend)
    result = run_ranks(ranks, keras_training.run, env=env, timeout=TIMEOUT)
    names = [check.__name__ for check in keras_training.CHECKS]
    assert list(result.values) == [names] * ranks


# With PyTorch, what Keras calls is what hvdtune.torch has. With JAX, only `test_training` is usual.
@pytest.mark.parametrize("backend", BACKENDS if EVERY else ["tensorflow"])
def test_callbacks_saved_models_and_elastic_state(backend: str, tmp_path: object) -> None:
    env = environment(backend)
    program, folder = keras_fit.run, str(tmp_path)
    result = run_ranks(2, program, folder, env=env, timeout=TIMEOUT)
    assert result.values[0] == result.values[1]
    assert len(result.values[0]) == 8


# Only on JAX, a step that fails takes the values of the model's variables with it.
@pytest.mark.parametrize("backend", BACKENDS if EVERY else ["jax"])
def test_training_goes_on_after_a_lost_job(backend: str) -> None:
    env = environment(backend)
    result = run_ranks(2, keras_fit.a_lost_job, env=env, timeout=TIMEOUT)
    committed = 2
    assert list(result.values) == [committed + keras_fit.ROWS // keras_fit.SIZE] * 2


@pytest.mark.parametrize("backend", ["torch"])
def test_no_other_backend_is_loaded(backend: str) -> None:
    """By hvdtune: Keras itself looks for TensorFlow in places."""
    env = environment(backend)
    result = run_ranks(1, keras_training.loaded_backends, env=env)
    assert result.values == (["torch"],)
