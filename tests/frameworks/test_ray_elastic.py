"""Elastic jobs on Ray: nodes that come and go, workers that die, hosts that a discovery tells."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support import ray_sessions
from support.ray_sessions import assert_nothing_reserved

from hvdtune.ray import ElasticRayExecutor, RayExecutor
from hvdtune.ray.crew import WorkerFailed

HOSTS = {f"node:host-{number}": 1.0 for number in range(1, 5)}
SECONDS = 300.0  # on a machine with nothing else to do, a tenth of that
SETTINGS = RayExecutor.create_settings(timeout_s=SECONDS)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A node, which has also the names of others; tests add more."""
    tmp_path_factory.getbasetemp()  # not within Ray's folder
    with ray_sessions.cluster(1, num_cpus=2, resources=HOSTS) as whole:
        yield whole


class Course:
    """A callback that does something when training has got so far: [(sizes so far, action)]."""

    def __init__(self, *steps: tuple[Sequence[int], Callable[[], Any]]) -> None:
        self.steps = list(steps)
        self.sizes: list[int] = []
        self.logged: list[dict[str, Any]] = []

    def __call__(self, logged: dict[str, Any]) -> None:
        self.logged.append(logged)
        size = logged.get("size")
        if size and (not self.sizes or self.sizes[-1] != size):
            self.sizes.append(size)
        if self.steps and self.sizes == list(self.steps[0][0]):
            self.steps.pop(0)[1]()


def training(*sizes: int, what: str = "") -> Callable[[], Any]:
    """A function that trains until the job has had these sizes, in this order.

    In the process that is rank 1 of the second size, it does `what`, if that is given.
    """
    deadline = SECONDS

    def train() -> Any:

        import numpy as np

        import hvdtune as hvd
        from hvdtune import elastic
        from hvdtune.ray import ray_logger

        hvd.init()
        ray_logger.log({"pid": os.getpid()}, chief_only=False)
        until = time.monotonic() + deadline

        @elastic.run
        def loop(state: Any) -> list[int]:
            while True:
                assert time.monotonic() < until, state.sizes
                if not state.sizes or state.sizes[-1] != hvd.size():
                    state.sizes = [*state.sizes, hvd.size()]
                total = hvd.allreduce(np.ones(1), op=hvd.Sum, name="count")
                state.total += float(total[0])
                state.steps += 1
                ray_logger.log({"size": hvd.size()})
                if what == "die" and len(state.sizes) == 1 and state.steps == 3 and hvd.rank():
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "raise" and state.steps == 3 and hvd.rank():
                    raise ValueError("boom")
                if state.sizes == list(sizes):
                    return state.sizes
                state.commit()
                time.sleep(0.02)

        state = elastic.ObjectState(
            hvd.broadcast_object, hvd.rank, sizes=[], total=0.0, steps=0, batch=0
        )
        return loop(state), state.total >= state.steps, hvd.rank(), hvd.local_rank()

    return train


def returned(found: list[Any], sizes: Sequence[int]) -> None:
    """All workers of the last size have returned, with the sizes that the job has had."""
    assert [one[0] for one in found] == [list(sizes)] * sizes[-1]
    assert all(one[1] for one in found)
    assert sorted(one[2] for one in found) == list(range(sizes[-1]))


def test_nodes_come_and_go(nodes: Any):
    added: list[Any] = []
    course = Course(
        ([2], lambda: added.append(nodes.add_node(num_cpus=2))),
        ([2, 4], lambda: nodes.remove_node(added.pop())),
    )
    executor = RayExecutor(SETTINGS, min_workers=2)
    executor.start()
    try:
        found = executor.run(training(2, 4, 2), callbacks=[course])
    finally:
        for node in added:
            nodes.remove_node(node)
    executor.shutdown()
    assert course.sizes == [2, 4, 2]
    returned(found, [2, 4, 2])
    assert len({one["pid"] for one in course.logged if "pid" in one}) == 4
    assert_nothing_reserved()


class Schedule:
    """A discovery of the user's, which tells hosts as a test wants them."""

    def __init__(self, **hosts: int) -> None:
        self.hosts = hosts

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return {name.replace("_", "-"): slots for name, slots in self.hosts.items()}


def test_hosts_of_a_discovery_are_added_and_removed():
    schedule = Schedule(host_1=1)
    course = Course(
        ([1], lambda: setattr(schedule, "hosts", {"host_1": 1, "host_2": 1})),
        ([1, 2], lambda: setattr(schedule, "hosts", {"host_2": 1})),
    )
    settings = ElasticRayExecutor.create_settings(timeout_s=SECONDS, discovery=schedule)
    executor = ElasticRayExecutor(settings, override_discovery=False)
    executor.start()
    found = executor.run(training(1, 2, 1), callbacks=[course])
    returned(found, [1, 2, 1])
    assert len({one["pid"] for one in course.logged if "pid" in one}) == 2


def test_there_are_no_more_workers_than_allowed():
    schedule = Schedule(host_1=1, host_2=3)
    settings = ElasticRayExecutor.create_settings(2, 2, timeout_s=SECONDS, discovery=schedule)
    executor = ElasticRayExecutor(settings, cpus_per_slot=0.5, override_discovery=False)
    executor.start()
    returned(executor.run(training(2)), [2])


def test_a_host_whose_worker_is_killed_gets_no_more():
    settings = RayExecutor.create_settings(timeout_s=SECONDS)
    settings.discovery = Schedule(host_1=1, host_2=1)
    executor = RayExecutor(settings, min_workers=1, cpus_per_worker=0.5, override_discovery=False)
    executor.start()
    course = Course()
    found = executor.run(training(2, 1, what="die"), callbacks=[course])
    returned(found, [2, 1])
    assert course.sizes == [2, 1]
    assert_nothing_reserved()


def test_the_reason_of_a_failed_job_is_told(capfd: pytest.CaptureFixture[str]):
    executor = RayExecutor(SETTINGS, min_workers=2)
    executor.start()
    with pytest.raises(WorkerFailed) as raised:
        executor.run(training(2, 1, what="raise"))
    assert isinstance(raised.value, ValueError)
    assert str(raised.value).startswith("The job has failed: Horovod detected that one or more")
    assert "rank 1 (pid " in str(raised.value)
    assert "raised ValueError: boom" in str(raised.value)
    assert "is excluded for ever (there is no cooldown_range)" in capfd.readouterr().err
    assert_nothing_reserved()


def test_too_few_slots_end_the_job_in_time():
    executor = RayExecutor(SETTINGS, min_workers=3, elastic_timeout=0.5)
    executor.start()
    with pytest.raises(RuntimeError, match=r"after 0.5 s \(elastic_timeout\), 3 slots are needed"):
        executor.run(training(3))


def test_an_interrupted_call_leaves_nothing():
    executor = RayExecutor(SETTINGS, min_workers=2)
    executor.start()

    def interrupt(logged: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run(training(2, 9), callbacks=[interrupt])
    assert_nothing_reserved()
