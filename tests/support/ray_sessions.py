"""Ray for tests: sessions that leave nothing in the home folder, /tmp/ray or the environment.

To be imported before `ray`, which reads some of these variables once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

os.environ |= {
    "RAY_AUTH_MODE": "disabled",  # it would write ~/.ray/auth_token
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # By default Ray's workers give way to all that runs beside the tests, and do not get on.
    "RAY_worker_niceness": "0",
}
ray = pytest.importorskip("ray")

_SECONDS = 15.0


@contextmanager
def folder() -> Iterator[str]:
    """A folder for all that Ray writes; its path is short, as Ray's sockets lie in it."""
    path = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    os.mkdir(os.path.join(path, "ray"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", path)
        patch.setenv("TMPDIR", path)
        patch.setattr(tempfile, "tempdir", path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def session(**options: Any) -> Iterator[None]:
    """Ray on this machine, with so many CPUs and GPUs as `options` say."""
    with folder():
        try:
            ray.init(include_dashboard=False, log_to_driver=False, **options)
            yield
        finally:
            ray.shutdown()


@contextmanager
def cluster(nodes: int, **options: Any) -> Iterator[Any]:
    """A cluster (`ray.cluster_utils.Cluster`) of nodes with these options, all on this machine."""
    from ray.cluster_utils import Cluster

    with folder():
        whole = Cluster(
            initialize_head=True, head_node_args={"include_dashboard": False, **options}
        )
        try:
            for _ in range(nodes - 1):
                whole.add_node(num_cpus=options["num_cpus"])
            ray.init(address=whole.address, log_to_driver=False)
            yield whole
        finally:
            ray.shutdown()
            whole.shutdown()


def assert_nothing_reserved() -> None:
    """All that the cluster has is free, and no placement group exists, or soon will not; and no
    folder of a recording is left. Those found are removed: the next test has not left them."""
    own = os.environ["RAY_TMPDIR"]  # see folder()
    left = [name for name in os.listdir(own) if name.startswith("hvdtune")]
    for name in left:
        shutil.rmtree(os.path.join(own, name), ignore_errors=True)
    assert not left
    deadline = time.monotonic() + _SECONDS
    while True:
        groups = [
            one for one in ray.util.placement_group_table().values() if one["state"] != "REMOVED"
        ]
        whole, free = ray.cluster_resources(), ray.available_resources()
        taken = {name for name in ("CPU", "GPU") if whole.get(name, 0) != free.get(name, 0)}
        if not groups and not taken:
            return
        assert time.monotonic() < deadline, (groups, whole, free)
        time.sleep(0.1)
