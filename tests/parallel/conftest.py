"""What tests of real ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gpus import fake_gpus


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libraries that stand for NVIDIA's.

    Whichever test comes first waits for them to be compiled: `pytest.mark.timeout(600)`.
    """
    try:
        return fake_gpus.build(tmp_path_factory.mktemp("fakes"))
    except RuntimeError as problem:
        pytest.skip(str(problem))
