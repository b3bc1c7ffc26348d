"""The check after every test finds what it is for."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

from support.jobs.leftovers import left_by_test, look
from support.jobs.nursery import MARK
from support.jobs.ranks import clean_environment


def test_an_orphan_is_found_and_ended() -> None:
    mark = secrets.token_hex(8)
    before = look(mark)
    start = ["setsid", "--fork", sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.run(start, env=clean_environment({MARK: mark}), check=True)
    (left,) = left_by_test(before, grace=0.2)
    assert "time.sleep(600)" in left
    assert left_by_test(before) == []


def test_a_file_in_shared_memory_is_found() -> None:
    before = look(secrets.token_hex(8))
    path = Path("/dev/shm") / f"hvdtune-test-{secrets.token_hex(8)}"
    path.touch()
    try:
        assert left_by_test(before, grace=0.0) == [f"{path} is still there"]
    finally:
        path.unlink()
    assert left_by_test(before, grace=0.0) == []
