"""RayExecutor on one node of Ray: what Horovod's own tests of it ask for, failures, recordings.

Functions for the workers are nested, so that they are pickled by value.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ray_sessions
from support.ray_sessions import assert_nothing_reserved, ray

from hvdtune.ray import RayExecutor
from hvdtune.ray.crew import WorkerFailed
from hvdtune.ray.strategy import create_placement_group
from hvdtune.timeline import api

SETTINGS = RayExecutor.create_settings()
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray, with GPUs that nobody uses."""
    tmp_path_factory.getbasetemp()  # not within Ray's folder
    with ray_sessions.session(num_cpus=4, num_gpus=4):
        yield


@pytest.fixture
def start() -> Iterator[Callable[..., RayExecutor]]:
    """Starts an executor; afterwards all that was reserved is free again."""
    executors = []

    def started(settings: Any = SETTINGS, **options: Any) -> RayExecutor:
        keywords = {
            name: options.pop(name)
            for name in ("executable_cls", "executable_args", "extra_env_vars")
            if name in options
        }
        executors.append(RayExecutor(settings, **options))
        executors[-1].start(**keywords)
        return executors[-1]

    yield started
    for executor in executors:
        executor.shutdown()
    assert_nothing_reserved()


def joined() -> tuple[int, int, float]:
    """Rank, size and the sum of ranks, as the workers find them."""
    import horovod
    import numpy as np

    import hvdtune as hvd

    assert horovod.__file__.startswith(os.path.dirname(hvd.__file__))
    hvd.init()
    return hvd.rank(), hvd.size(), float(hvd.allreduce(np.ones(1) * hvd.rank(), op=hvd.Sum)[0])


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one that is not found by its name: the workers do not have this module."""
    function.__module__ = "__main__"
    return function


joined = by_value(joined)


def test_ranks_reduce_and_come_in_order(start: Callable[..., RayExecutor]):
    executor = start(num_workers=3)
    expected = [(rank, 3, 3.0) for rank in range(3)]
    assert executor.run(joined) == expected
    assert executor.execute(lambda executable: (executable, joined())) == [
        (None, one) for one in expected
    ]
    assert ray.get(executor.run_remote(joined)) == expected
    assert executor.execute_single(lambda _: os.environ["HOROVOD_RANK"]) == "0"
    assert executor.run(lambda a, b: (a, b), args=[1], kwargs={"b": 2}) == [(1, 2)] * 3
    with pytest.raises(RuntimeError, match=r"the workers run already; call shutdown\(\) first"):
        executor.start()


def test_what_cannot_be_reserved_is_a_timeout(start: Callable[..., RayExecutor]):
    settings = RayExecutor.create_settings(placement_group_timeout_s=0.5)
    with pytest.raises(TimeoutError) as raised:
        start(settings, num_hosts=1, num_workers_per_host=5)
    assert "has not reserved 1 x 5 CPU, 0 GPU (STRICT_SPREAD) within 0.5 s" in str(raised.value)
    assert "the cluster has 4 CPU, 4 GPU, of which 4 CPU, 4 GPU is free" in str(raised.value)
    with pytest.raises(TimeoutError, match=r"2 x 1 CPU, 3 GPU \(PACK\)"):
        start(settings, num_workers=2, use_gpu=True, gpus_per_worker=3)


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_hosts": 1, "num_workers_per_host": 2}])
def test_workers_of_a_host_see_each_others_gpus(
    how: dict[str, int], start: Callable[..., RayExecutor]
):
    executor = start(**how, use_gpu=True, gpus_per_worker=2)
    workers = executor.adapter.workers
    seen = {env["CUDA_VISIBLE_DEVICES"] for env in ray.get([w.env_vars.remote() for w in workers])}
    given = ray.get([worker.get_gpu_ids.remote() for worker in workers])
    assert seen == {",".join(given[0] + given[1])}
    assert sorted(given[0] + given[1]) == ["0", "1", "2", "3"]


def test_an_actor_s_environment_can_be_set():
    from hvdtune.ray import BaseHorovodWorker

    actor = ray.remote(BaseHorovodWorker).options(num_cpus=0).remote()
    try:
        ray.get(actor.update_env_vars.remote({"TEST": 1123123}))
        assert ray.get(actor.env_vars.remote())["TEST"] == "1123123"
        assert ray.get(actor.hostname.remote()) == socket.gethostname()
    finally:
        ray.kill(actor)


def test_workers_know_their_host_and_the_settings(
    start: Callable[..., RayExecutor], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1048576")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    settings = RayExecutor.create_settings(timeout_s=17)
    more = {"HOROVOD_CYCLE_TIME": 2, "MINE": "here"}
    executor = start(settings, num_hosts=1, num_workers_per_host=2, extra_env_vars=more)
    node = ray.get_runtime_context().get_node_id()
    for rank, found in enumerate(executor.run(lambda: dict(os.environ))):
        expected = {
            "HOROVOD_HOSTNAME": node,
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_FUSION_THRESHOLD": "1048576",
            "HOROVOD_CYCLE_TIME": "2",
            "HOROVOD_START_TIMEOUT": "17",
            "MINE": "here",
        }
        assert {name: found[name] for name in expected} == expected
        # On one host nothing leads anywhere; the engine is hvdtune's own.
        assert not {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_CPU_OPERATIONS"} & found.keys()
    assert executor.execute(lambda _: socket.gethostname()) == [socket.gethostname()] * 2


def test_an_executable_is_made_in_every_worker(start: Callable[..., RayExecutor]):
    class Executable:
        def __init__(self, epochs: int) -> None:
            import hvdtune as hvd

            hvd.init()
            self.product = hvd.rank() * epochs

    executor = start(num_workers=3, executable_cls=Executable, executable_args=[2])
    assert executor.execute(lambda made: made.product) == [0, 2, 4]
    assert executor.execute_single(lambda made: made.product + 1) == 1

    class Broken:
        def __init__(self) -> None:
            raise LookupError("no data")

    recorded = {"HOROVOD_TIMELINE": "/nowhere/t.json"}
    with pytest.raises(LookupError, match=r"rank [01] .* raised LookupError: no data"):
        start(num_workers=1, executable_cls=Broken, extra_env_vars=recorded)


@by_value
def train() -> tuple[int, list[float], list[float]]:
    """Local rank, losses and weights of a small training with PyTorch."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())
    data = torch.randn(32, 2)
    target = (data.sum(1) > 0).long()
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return hvd.local_rank(), losses, model.weight.flatten().tolist()


def check_training(found: list[tuple[int, list[float], list[float]]]) -> None:
    assert [local_rank for local_rank, _, _ in found] == list(range(len(found)))
    assert all(losses[-1] < losses[0] for _, losses, _ in found)
    assert all(weights == found[0][2] for _, _, weights in found)


def test_training(start: Callable[..., RayExecutor]):
    check_training(start(num_workers=2).run(train))


def test_within_a_placement_group_workers_take_its_resources():
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group, bundles = create_placement_group({"CPU": 1}, 3, 10, "PACK")
    assert bundles == [{"CPU": 1}] * 3

    def trial(settings: Any) -> tuple[Any, float]:
        executor = RayExecutor(settings, num_workers=2)
        executor.start()
        try:
            free = ray.available_resources().get("CPU", 0)
            return executor.run(joined), free
        finally:
            executor.shutdown()

    place = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    try:
        task = ray.remote(trial).options(num_cpus=1, scheduling_strategy=place)
        found, free = ray.get(task.remote(SETTINGS))
        assert found == [(0, 2, 1.0), (1, 2, 1.0)]
        assert free == 1  # of four, three are the group's
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
    finally:
        ray.util.remove_placement_group(group)
    assert_nothing_reserved()


def test_a_rank_that_raises_ends_the_others(start: Callable[..., RayExecutor]):
    executor = start(num_workers=3)

    def fail() -> None:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        print("about to fail" if hvd.rank() == 2 else "waits")
        if hvd.rank() == 2:
            raise KeyError("boom")
        hvd.allreduce(np.ones(1))

    with pytest.raises(WorkerFailed) as raised:
        executor.run(fail)
    text = str(raised.value)
    assert text.startswith("rank 2 (pid ")
    assert "raised KeyError: 'boom'. Its last lines of output:\n    about to fail" in text
    assert raised.value.rank == 2
    assert isinstance(raised.value, KeyError)
    assert_nothing_reserved()
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(fail)
    executor.start()
    assert executor.run(joined)[1][2] == 3


def test_a_rank_that_is_killed_ends_the_others(start: Callable[..., RayExecutor]):
    executor = start(num_workers=2)

    def die() -> None:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        if hvd.rank() == 1:
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(1))

    with pytest.raises(ray.exceptions.RayActorError) as raised:
        executor.run(die)
    text = str(raised.value)
    assert text.startswith("rank 1 (pid ")
    assert "died: its worker process has died" in text
    assert text.endswith("Its last lines of output:\n    last words")
    assert isinstance(raised.value, WorkerFailed)
    assert_nothing_reserved()


def test_a_rank_that_is_busy_elsewhere_is_ended_too(start: Callable[..., RayExecutor]):
    executor = start(num_workers=2)

    def fail() -> None:
        if os.environ["HOROVOD_RANK"] == "0":
            raise SystemExit(3)
        time.sleep(1000)

    with pytest.raises(WorkerFailed, match="rank 0 "):
        executor.run(fail)


def test_references_of_a_call_that_fails_do_not_hang(start: Callable[..., RayExecutor]):
    import hvdtune as hvd

    def fail() -> None:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("boom")
        hvd.allreduce(np.ones(1))

    first, second = start(num_workers=2).run_remote(fail)
    with pytest.raises(hvd.HorovodInternalError):
        ray.get(first)
    with pytest.raises(ValueError, match="boom"):
        ray.get(second)


def test_callbacks_get_what_is_logged(start: Callable[..., RayExecutor]):
    executor = start(num_workers=2)

    def log(executable: Any = None) -> int:
        from horovod.ray import ray_logger

        for number in range(3):
            ray_logger.log({"rank": os.environ["HOROVOD_RANK"], "number": number})
        return 5

    def log_all() -> None:
        from horovod.ray import ray_logger

        ray_logger.log({"rank": os.environ["HOROVOD_RANK"]}, chief_only=False)

    one, other = [], []
    expected = [{"rank": "0", "number": number} for number in range(3)]
    assert executor.run(log, callbacks=[one.append, other.append]) == [5, 5]
    assert one == other == expected
    assert executor.execute(log, callbacks=[one.append]) == [5, 5]
    assert one == expected * 2
    executor.run(log_all, callbacks=[other.append])
    assert sorted(logged["rank"] for logged in other[3:]) == ["0", "1"]
    assert executor.run(log) == [5, 5]  # to nobody

    def refuse(logged: Any) -> None:
        raise LookupError("not mine")

    with pytest.raises(LookupError, match="not mine"):
        executor.run(log, callbacks=[refuse])
    assert_nothing_reserved()


def test_the_recording_is_joined_and_fetched(start: Callable[..., RayExecutor], tmp_path: Path):
    file = tmp_path / "made" / "t.json"
    executor = start(num_workers=2, extra_env_vars={"HOROVOD_TIMELINE": str(file)})

    def steps() -> str:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        for _ in range(4):
            hvd.allreduce(np.ones(1000), name="gradient")
            hvd.mark_step()
        return os.path.dirname(os.environ["HOROVOD_TIMELINE"])

    [folder] = set(executor.run(steps))
    assert executor.timeline() == str(file)
    assert executor.timeline() is None  # it has been fetched
    assert set(api.read(file).steps()["rank"]) == {0, 1}
    assert os.listdir(file.parent) == ["t.json"]
    assert not os.path.exists(folder)


def test_a_recording_is_fetched_although_a_rank_has_died(
    start: Callable[..., RayExecutor], tmp_path: Path
):
    file = tmp_path / "t.json"
    executor = start(num_workers=2, extra_env_vars={"HOROVOD_TIMELINE": str(file)})

    def record() -> None:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        hvd.allreduce(np.ones(1000), name="gradient")
        hvd.shutdown()

    def die() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    executor.run(record)
    _, second = executor.run_remote(die)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(second, timeout=60)
    assert executor.timeline() == str(file)
    assert set(api.read(file).recording.ranks) == {0, 1}


def test_shutdown_and_failures_leave_the_recording(
    start: Callable[..., RayExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOROVOD_TIMELINE", "t.json")
    executor = start(num_workers=2)

    def fail() -> None:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        hvd.allreduce(np.ones(1000), name="gradient")
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        executor.run(fail)
    executor.shutdown()
    assert set(api.read(tmp_path / "t.json").recording.ranks) == {0, 1}
    assert sorted(os.listdir(tmp_path)) == ["t.json"]
