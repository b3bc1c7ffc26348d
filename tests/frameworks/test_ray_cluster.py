"""RayExecutor on a cluster of two nodes, and by Ray's client. Both nodes are on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ray_sessions
from support.ray_sessions import assert_nothing_reserved, ray

from hvdtune.core.meeting.place import free_port
from hvdtune.ray import RayExecutor
from hvdtune.ray.crew import WorkerFailed
from hvdtune.timeline import api

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = RayExecutor.create_settings()
PORT = free_port()
SECONDS = 500.0  # for a program: on a machine with nothing else to do, a tenth of that
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    tmp_path_factory.getbasetemp()  # not within Ray's folder
    with ray_sessions.cluster(2, num_cpus=3, ray_client_server_port=PORT) as whole:
        yield whole


def test_the_same_number_of_workers_on_each_node(tmp_path: Path):
    file = tmp_path / "t.json"
    executor = RayExecutor(SETTINGS, num_hosts=2, num_workers_per_host=2)
    executor.start(extra_env_vars={"HOROVOD_TIMELINE": str(file)})

    def reduce() -> tuple[Any, ...]:
        import numpy as np

        import hvdtune as hvd

        hvd.init()
        total = float(hvd.allreduce(np.ones(1) * hvd.rank(), op=hvd.Sum)[0])
        node = ray.get_runtime_context().get_node_id()
        assert os.environ["HOROVOD_HOSTNAME"] == node
        return node, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), total

    found = executor.run(reduce)
    first, second = found[0][0], found[2][0]
    assert {first, second} == {node["NodeID"] for node in ray.nodes()}
    assert found == [
        (first, 0, 2, 0, 2, 6.0),
        (first, 1, 2, 0, 2, 6.0),
        (second, 0, 2, 1, 2, 6.0),
        (second, 1, 2, 1, 2, 6.0),
    ]
    assert executor.timeline() == str(file)
    assert set(api.read(file).recording.ranks) == {0, 1, 2, 3}
    assert os.listdir(tmp_path) == ["t.json"]
    executor.shutdown()
    with pytest.raises(TimeoutError, match=r"3 x 1 CPU, 0 GPU \(STRICT_SPREAD\)"):
        RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=0.3), num_hosts=3).start()
    assert_nothing_reserved()


def test_ranks_are_counted_host_by_host():
    executor = RayExecutor(SETTINGS, num_workers=5)  # Ray packs three and two
    executor.start()

    def place() -> tuple[str, int, int]:
        import hvdtune as hvd

        hvd.init()
        return os.environ["HOROVOD_HOSTNAME"], hvd.local_rank(), hvd.cross_size()

    found = executor.run(place)
    executor.shutdown()
    sizes = list(Counter(host for host, _, _ in found).values())  # in the order of ranks
    assert sorted(sizes) == [2, 3]
    assert [local_rank for _, local_rank, _ in found] == [*range(sizes[0]), *range(sizes[1])]
    assert [cross for _, local_rank, cross in found if local_rank < 2] == [2] * 4
    assert_nothing_reserved()


CLIENT = """
import os, sys
import ray
from hvdtune.ray import RayExecutor

for attempt in range(5):  # Ray's proxy does not always get a client's server started
    try:
        ray.init(f"ray://127.0.0.1:{sys.argv[1]}")
        break
    except ConnectionError as error:
        print(error, file=sys.stderr)
os.environ["HOROVOD_TIMELINE"] = sys.argv[2]
executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
executor.start()

def train():
    import horovod.torch as hvd
    import torch
    from horovod.ray import ray_logger

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model(torch.ones(4, 2) * hvd.rank()).sum().backward()
    optimizer.step()
    ray_logger.log({"rank": hvd.rank()})
    return model.weight.detach().numpy()

logged = []
first, second = executor.run(train, callbacks=[logged.append])
assert (first == second).all()
assert logged == [{"rank": 0}], logged
assert ray.get(executor.run_remote(lambda: os.environ["HOROVOD_RANK"])) == ["0", "1"]
assert executor.execute_single(lambda executable: executable) is None
assert executor.timeline() == sys.argv[2]
assert os.path.exists(sys.argv[2])

def fail():
    raise ValueError("boom")

try:
    executor.run(fail)
except ValueError as error:
    assert "raised ValueError: boom" in str(error), error
else:
    raise AssertionError("no error")
executor.start()

def log():
    from hvdtune.ray import ray_logger

    ray_logger.log({})

def refuse(logged):
    raise LookupError("not mine")

try:
    executor.run(log, callbacks=[refuse])
except LookupError as error:
    assert "not mine" in str(error)
else:
    raise AssertionError("no error")
groups = ray.util.placement_group_table().values()
assert {group["state"] for group in groups} == {"REMOVED"}, groups
executor.shutdown()

def reduce():
    import numpy as np

    import hvdtune as hvd
    from hvdtune.ray import ray_logger

    hvd.init()
    ray_logger.log({"size": hvd.size()})
    return float(hvd.allreduce(np.ones(1) * hvd.rank(), op=hvd.Sum)[0])

elastic = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2)
elastic.start()
logged = []
assert elastic.run(reduce, callbacks=[logged.append]) == [1.0, 1.0]
assert logged == [{"size": 2}], logged
elastic.shutdown()
ray.shutdown()
print("all is well")
"""


def output_of(*command: str, **variables: str) -> str:
    """What a Python program prints, which has to succeed."""
    ended = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_client_runs_the_same_job(tmp_path: Path):
    try:
        assert "all is well" in output_of("-c", CLIENT, str(PORT), str(tmp_path / "t.json"))
    finally:  # the next test needs what a client that has failed had reserved
        assert_nothing_reserved()


def test_the_example(nodes: Any):
    words = ["--address", nodes.address, "--epochs", "3"]
    said = output_of(str(ROOT / "examples/ray/moons.py"), *words)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+) \(2 workers\)", said)]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert float(re.findall(r"right: ([\d.]+)%", said)[0]) > 90
    assert_nothing_reserved()


TRAINER = """
import os, sys

import hvdtune

sys.path.insert(0, os.path.join(os.path.dirname(hvdtune.__file__), "_alias"))
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.horovod import HorovodConfig, HorovodTrainer

ray.init("local", num_cpus=3, include_dashboard=False)

def train():
    import numpy as np

    import hvdtune as hvd

    hvd.init()
    total = hvd.allreduce(np.ones(1) * (hvd.rank() + 1), op=hvd.Sum)
    with open(os.path.join(folder, str(hvd.rank())), "w") as file:
        print(hvd.size(), hvd.local_size(), hvd.cross_size(), int(total[0]), file=file)

folder = sys.argv[1]
HorovodTrainer(
    train,
    horovod_config=HorovodConfig(),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=folder + "/results"),
).fit()
ray.shutdown()  # with all that Ray Train keeps
"""


@pytest.mark.long
def test_ray_train_s_trainer_for_horovod(tmp_path: Path):
    output_of("-c", TRAINER, str(tmp_path), RAY_TRAIN_V2_ENABLED="0")
    said = {(tmp_path / str(rank)).read_text() for rank in range(2)}
    assert said == {"2 2 1 3\n"}
    assert_nothing_reserved()


def test_a_node_that_is_lost_ends_the_job(nodes: Any, tmp_path: Path):
    executor = RayExecutor(SETTINGS, num_hosts=2)
    executor.start()
    second = next(node for node in nodes.list_all_nodes() if node is not nodes.head_node)
    lost = second.node_id

    def sleep() -> None:
        (tmp_path / os.environ["HOROVOD_RANK"]).touch()
        time.sleep(1000)

    ended = threading.Event()

    def remove() -> None:
        while len(os.listdir(tmp_path)) < 2 and not ended.wait(0.05):
            pass
        nodes.remove_node(second)

    removal = threading.Thread(target=remove)
    removal.start()
    try:
        with pytest.raises(WorkerFailed) as raised:
            executor.run(sleep)
    finally:
        ended.set()
        removal.join()
    assert "died: its node has died" in str(raised.value)
    assert lost in str(raised.value)
    assert "(its output is on its node, which cannot be reached)" in str(raised.value)
    executor.shutdown()
    assert_nothing_reserved()
