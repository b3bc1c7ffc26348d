"""What tests of real ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gpus import fake_gpus
from support.native_builds import NativeBuilds


@pytest.fixture(scope="session")
def fakes(native_builds: NativeBuilds) -> Path:
    """The folder of the fake libraries that stand for NVIDIA's; kept for the next run.

    Whichever test comes first waits for them to be compiled: `pytest.mark.timeout(600)`.
    """
    try:
        return fake_gpus.build(native_builds.directory / "fakes")
    except RuntimeError as problem:
        pytest.skip(str(problem))
