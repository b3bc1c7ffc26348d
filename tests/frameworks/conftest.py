"""A Spark session for all files of tests that want one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def classic_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A classic session, local[2]. Its JVM takes long to start, and longer to become fast.

    What it needs in this process's environment stays there to the end: Spark's path, one thread.
    """
    from support.jobs.leftovers import left_by_test, look
    from support.spark_sessions import MARK, spark_session

    before = look(secrets.token_hex(16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, secrets.token_hex(8))
        with spark_session(tmp_path_factory.mktemp("spark")) as session:
            yield session
    left = left_by_test(before)
    assert not left, f"the tests left something behind: {left}"
