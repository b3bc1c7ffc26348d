"""tf-keras (Keras 2) through hvdtune.tensorflow.keras, as scripts of old use it."""

from __future__ import annotations

import pytest

pytest.importorskip("tf_keras", reason="tf-keras is not installed")

from rank_programs import keras_fit, tf_keras_training
from support.jobs.ranks import run_ranks

ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
}


def test_training() -> None:
    result = run_ranks(2, tf_keras_training.run, env=ENVIRONMENT, timeout=600.0)
    names = [check.__name__ for check in tf_keras_training.CHECKS]
    assert list(result.values) == [names] * 2


def test_callbacks_saved_models_and_elastic_state(tmp_path: object) -> None:
    program, folder = keras_fit.run, str(tmp_path)
    result = run_ranks(2, program, folder, env=ENVIRONMENT, timeout=600.0)
    assert result.values[0] == result.values[1]
