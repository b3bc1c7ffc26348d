"""hvdtune.ray without a session: tables of ranks, slots of nodes, settings, errors."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ray_sessions  # noqa: F401  (before hvdtune.ray)

import hvdtune.ray
from hvdtune.ray import (
    ElasticRayExecutor,
    RayExecutor,
    coordinator,
    crew,
    elastic,
    recording,
    runner,
)
from hvdtune.ray.elastic import actors, discovery
from hvdtune.ray.runner import Coordinator, MiniSettings, StaticParams
from hvdtune.ray.settings import placement_seconds, start_seconds
from hvdtune.ray.utils import detect_nics, nics_to_env_var
from hvdtune.ray.worker import BaseHorovodWorker

DOCS = Path(__file__).resolve().parents[2] / "docs"


def registered(nodes: list[str]) -> Coordinator:
    """With a worker on each of these nodes, by rank."""
    found = Coordinator(MiniSettings())
    for rank, node in enumerate(nodes):
        found.register(f"host of {node}", node, rank)
    return found


def test_ranks_in_turn_on_three_nodes():
    empty = Coordinator(MiniSettings())
    assert (empty.world_size, empty.node_id_string) == (0, "")
    assert empty.finalize_registration() == {}
    full = registered(["a", "b", "c"] * 4)
    assert full.world_size == 12
    assert full.node_id_string == "a:4,b:4,c:4"
    assert full.hostnames == {"host of a", "host of b", "host of c"}
    assert full.finalize_registration() == {
        rank: {
            "HOROVOD_CROSS_RANK": rank % 3,
            "HOROVOD_CROSS_SIZE": 3,
            "HOROVOD_LOCAL_RANK": rank // 3,
            "HOROVOD_LOCAL_SIZE": 4,
        }
        for rank in range(12)
    }


def test_nodes_with_different_numbers_of_workers():
    found = registered([*"aaaaa", *"bbbb", *"ccc"]).finalize_registration()
    by_local_rank: dict[int, list[tuple[int, int]]] = {}
    for place in found.values():
        cross = place["HOROVOD_CROSS_RANK"], place["HOROVOD_CROSS_SIZE"]
        by_local_rank.setdefault(place["HOROVOD_LOCAL_RANK"], []).append(cross)
    assert [place["HOROVOD_LOCAL_SIZE"] for place in found.values()] == [5] * 5 + [4] * 4 + [3] * 3
    three = [(0, 3), (1, 3), (2, 3)]
    assert by_local_rank == {0: three, 1: three, 2: three, 3: [(0, 2), (1, 2)], 4: [(0, 1)]}


def test_a_rendezvous_leads_to_the_node_of_rank_0(monkeypatch: pytest.MonkeyPatch):
    known = [{"NodeID": node, "NodeManagerAddress": f"10.0.0.{node}"} for node in "12"]
    monkeypatch.setattr(coordinator.ray, "nodes", lambda: known)
    found = registered(["2", "1"]).establish_rendezvous()
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.2"
    assert 0 < int(found["HOROVOD_GLOO_RENDEZVOUS_PORT"]) < 65536
    assert registered(["1", "1"]).establish_rendezvous().keys() == {
        "HVDTUNE_JOB_ID", "HVDTUNE_SECRET",
    }  # fmt: skip
    with pytest.raises(ValueError, match="rank 0 is on node 'x', which Ray does not know"):
        registered(["x"]).establish_rendezvous()
    with pytest.raises(ValueError, match="rank 0 is missing"):
        Coordinator(MiniSettings()).establish_rendezvous()


def node(address: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Resources": resources, "alive": alive}


@pytest.mark.parametrize(
    ("options", "resources", "slots"),
    [
        ({"cpus_per_slot": 1}, {"CPU": 4, "GPU": 1}, 4),
        ({"use_gpu": True, "cpus_per_slot": 1}, {"CPU": 4, "GPU": 1}, 1),
        ({"use_gpu": True, "cpus_per_slot": 1, "gpus_per_slot": 2}, {"CPU": 4, "GPU": 4}, 2),
        ({"use_gpu": True, "cpus_per_slot": 1}, {"CPU": 8, "GPU": 2}, 2),
        ({"use_gpu": True, "gpus_per_slot": 2}, {"CPU": 8, "GPU": 2}, 1),
        ({"use_gpu": True, "cpus_per_slot": 1}, {"CPU": 8}, 0),
        ({"cpus_per_slot": 3}, {"CPU": 8}, 2),
        ({"cpus_per_slot": 16}, {"CPU": 8}, 0),
        ({"cpus_per_slot": 0.1}, {"CPU": 1}, 10),
        ({"use_gpu": True, "gpus_per_slot": 0.2}, {"CPU": 8, "GPU": 1}, 5),
    ],
)
def test_slots_of_ray_s_nodes(
    options: dict[str, Any], resources: dict[str, float], slots: int, monkeypatch: Any
):
    nodes = [node("host-1", **resources), node("host-2", **resources)]
    nodes.append(node("dead", alive=False, **resources))
    monkeypatch.setattr(discovery.ray, "nodes", lambda: map(dict, nodes))
    found = elastic.RayHostDiscovery(**options).find_available_hosts_and_slots()
    assert found == ({"host-1": slots, "host-2": slots} if slots else {})


def test_what_others_use_is_no_slot(monkeypatch: pytest.MonkeyPatch):
    nodes = [{**node("ip", CPU=8, GPU=4), "NodeID": name} for name in "abc"]
    free: dict[str, dict[str, float]] = {"a": {"CPU": 8, "GPU": 4}, "b": {"CPU": 3, "GPU": 1}}
    own: dict[str, int | None] = {}
    monkeypatch.setattr(discovery.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(discovery, "_free_by_node", lambda: free)

    def found(cpus: float, gpus: float) -> dict[str, int]:
        looking = discovery.NodeDiscovery(
            discovery.Share(cpus, gpus), lambda name: own.get(name, 0)
        )
        return looking.find_available_hosts_and_slots()

    assert found(1, 0) == {"a": 8, "b": 3, "c": 8}  # Ray says nothing of c
    assert found(2, 0) == {"a": 4, "b": 1, "c": 4}
    assert found(1, 1) == {"a": 4, "b": 1, "c": 4}
    assert found(0.1, 0) == {"a": 80, "b": 30, "c": 80}
    own["b"] = 2
    assert found(1, 0)["b"] == 5
    free["b"] = {}
    looking = discovery.NodeDiscovery(discovery.Share(1, 0), lambda name: own.get(name, 0))
    assert looking.find_available_hosts_and_slots()["b"] == 2
    own["b"], free["a"] = None, {}  # a process is being started on b
    assert looking.find_available_hosts_and_slots() == {"b": 2, "c": 8}


def test_nodes_that_come_and_go_by_chance(monkeypatch: pytest.MonkeyPatch):
    nodes = [node(f"host-{number}", CPU=2) for number in range(4)]
    monkeypatch.setattr(discovery.ray, "nodes", lambda: nodes)
    looking = elastic.TestDiscovery(2, 3, change_frequency_s=0, cpus_per_slot=1, verbose=False)
    assert looking.find_available_hosts_and_slots() == {f"host-{n}": 2 for n in range(4)}
    counts = [len(looking.find_available_hosts_and_slots()) for _ in range(100)]
    assert counts[0] == 3
    assert set(counts) == {2, 3}
    gone = (looking._hidden & {f"host-{n}" for n in range(4)}).pop()
    nodes[:] = [one for one in nodes if one["NodeManagerAddress"] != gone]
    looking.find_available_hosts_and_slots()
    assert gone not in looking._hidden
    slow = elastic.TestDiscovery(0, 1, change_frequency_s=1000, verbose=False)
    assert all(len(slow.find_available_hosts_and_slots()) == 3 for _ in range(3))
    with pytest.raises(ValueError, match="_graceful=False is not accepted"):
        elastic.TestDiscovery(1, 2, 3, _graceful=False)


def test_any_settings_with_the_attributes_will_do():
    horovods = SimpleNamespace(
        verbose=2, nics={"eth1", "eth0"}, start_timeout=SimpleNamespace(remaining=lambda: 12.5)
    )
    assert (placement_seconds(horovods), start_seconds(horovods)) == (100, 12.5)
    assert detect_nics(horovods, ["a", "b"]) == ["eth0", "eth1"]
    assert nics_to_env_var(["eth0", "eth1"]) == {
        "HOROVOD_GLOO_IFACE": "eth0,eth1", "NCCL_SOCKET_IFNAME": "eth0,eth1",
    }  # fmt: skip
    mini = RayExecutor.create_settings(timeout_s=7, placement_group_timeout_s=3)
    assert (placement_seconds(mini), start_seconds(mini)) == (3, 7)
    assert detect_nics(mini, ["a"]) == []
    assert nics_to_env_var([]) == {}


def test_a_key_is_written_once(tmp_path: Any):
    path = tmp_path / "key"
    RayExecutor.create_settings(ssh_identity_file=str(path), ssh_str="a key")
    RayExecutor.create_settings(ssh_identity_file=str(path), ssh_str="another")
    assert path.read_text() == "a key"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give either num_workers, or num_hosts and num_workers_per_host"),
        ({"num_workers": 2, "num_hosts": 1}, "num_workers=2 and num_hosts=1"),
        ({"num_workers": 0}, "num_workers=0: give a whole number, 1 or more"),
        ({"num_hosts": 1, "num_workers_per_host": 1.5}, "num_workers_per_host=1.5"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "gpus_per_worker=1 needs use_gpu=True"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": -1}, "give 1 or more"),
        ({"max_workers": 2}, "max_workers=2 needs min_workers"),
        ({"min_workers": 1, "num_workers": 2}, "exclude each other"),
        ({"min_workers": 0}, "^min_workers 0 is not accepted: give 1 or more"),
        ({"min_workers": 3, "max_workers": 2}, "^max_workers 2 is less than the 3 processes"),
        ({"min_workers": 1, "reset_limit": -1}, "^reset_limit -1 is not accepted"),
        ({"min_workers": 1, "cooldown_range": (9, 1)}, "^cooldown_range 9 1 is not accepted"),
        ({"min_workers": 1, "gpus_per_worker": 1}, "gpus_per_worker=1 needs use_gpu=True"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        RayExecutor(MiniSettings(), **options)


def test_settings_of_elastic_jobs():
    with pytest.warns(DeprecationWarning, match="max_np is deprecated, use max_num_proc"):
        settings = ElasticRayExecutor.create_settings(
            min_num_proc=2, max_np=4, cooldown_range=(1, 2)
        )
    assert (settings.min_num_proc, settings.max_num_proc) == (2, 4)
    assert (settings.elastic, settings.cooldown_range) == (True, (1, 2))
    with pytest.raises(ValueError, match=r"override_discovery=False needs settings\.discovery"):
        ElasticRayExecutor(settings, override_discovery=False)
    with pytest.raises(ValueError, match="needs use_gpu=True"):
        ElasticRayExecutor(settings, gpus_per_slot=1)
    executor = RayExecutor(MiniSettings(), min_workers=1)
    assert executor.params.elastic
    for call in (executor.run_remote, executor.execute_single):
        executor.adapter = executor.params.adapter(MiniSettings(), min_workers=1)
        with pytest.raises(NotImplementedError, match=r"is not for elastic jobs.*call run\(\)"):
            call(print)


def test_the_local_rank_leads_to_an_own_gpu(monkeypatch: pytest.MonkeyPatch):
    whole = [{"NodeID": "a", "Resources": {"GPU": 4.0}}]
    monkeypatch.setattr(actors.ray, "nodes", lambda: whole)

    def visible(local_rank: int, *own: str) -> str:
        facts = {"node_id": "a", "process": {"gpus": list(own)}}
        order = SimpleNamespace(local_rank=local_rank)
        return actors.Actors._gpus(None, SimpleNamespace(facts=facts, order=order))

    assert visible(0, "3") == "3,0,1,2"
    assert visible(2, "0") == "1,2,0,3"
    assert visible(1, "0", "1") == "2,3,0,1"
    assert visible(0) == ""


def test_parameters_say_who_runs_the_job():
    params = StaticParams(num_workers=2, use_gpu=True)
    assert (params.elastic, params.gpus_per_worker) == (False, 1)
    assert params.adapter(MiniSettings(), num_workers=2).workers == []


def test_an_executor_that_has_not_started_says_so():
    executor = RayExecutor(MiniSettings(), num_workers=1)
    executor.shutdown()
    for call in (
        lambda: executor.run(print),
        lambda: executor.execute(print),
        lambda: executor.run_remote(print),
        lambda: executor.execute_single(print),
        executor.timeline,
    ):
        with pytest.raises(RuntimeError, match=r"there are no workers: call start\(\) first"):
            call()


def test_a_recording_that_cannot_be_written_does_not_keep_the_workers(tmp_path: Path):
    done: list[str] = []

    def collect(folder: str, seconds: float | None) -> dict[str, bytes]:
        assert seconds is not None  # workers that are busy are not waited for without end
        done.append("collect")
        return {"t.json": b"0"}

    (tmp_path / "file").touch()
    executor = RayExecutor(MiniSettings(), num_workers=1)
    executor.adapter = SimpleNamespace(collect=collect, shutdown=lambda: done.append("shutdown"))
    executor._recording = recording.Recording(str(tmp_path / "file" / "t.json"), "a folder")
    with pytest.raises(FileExistsError):
        executor.shutdown()
    assert done == ["collect", "shutdown"]
    executor.shutdown()
    assert done == ["collect", "shutdown"]


def test_an_interrupt_ends_what_ray_s_client_has_made(monkeypatch: pytest.MonkeyPatch):
    ended: list[Any] = []
    made: list[dict[str, Any]] = []
    method = SimpleNamespace(remote=lambda **arguments: "a reference")
    actor = SimpleNamespace(start=method, shutdown=method)

    def make(settings: Any, **arguments: Any) -> Any:
        made.append(arguments)
        return actor

    def interrupted(reference: Any) -> Any:
        raise KeyboardInterrupt

    kind = SimpleNamespace(options=lambda num_cpus: SimpleNamespace(remote=make))
    client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: True))
    far = SimpleNamespace(
        get=interrupted, kill=ended.append, remote=lambda one: kind,
        util=SimpleNamespace(client=client),
    )  # fmt: skip
    monkeypatch.setattr(runner, "ray", far)
    monkeypatch.setattr(runner, "get_placement_group", lambda name: name)
    monkeypatch.setattr(runner, "remove_placement_group", ended.append)
    executor = RayExecutor(MiniSettings(), num_workers=1)
    with pytest.raises(KeyboardInterrupt):
        executor.start()
    name = made[0]["group_name"]
    assert name.startswith("hvdtune-")
    assert ended == [actor, name]  # each once
    executor.adapter = actor
    with pytest.raises(KeyboardInterrupt):
        executor.shutdown()
    assert ended == [actor, name] * 2


def test_a_worker_is_an_ordinary_object_outside_ray(monkeypatch: pytest.MonkeyPatch):
    for name in ("HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "path", list(sys.path))

    class Mine(BaseHorovodWorker):
        pass

    worker = Mine(world_rank=1, world_size=3)
    assert worker.hostname() == worker.node_id() == socket.gethostname()
    assert (os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]) == ("1", "3")
    worker.start_executable(dict, [], {"a": 1})
    assert worker.execute(lambda made: made) == {"a": 1}


def test_a_failure_is_of_the_class_that_the_rank_raised():
    class Odd(UnicodeDecodeError):
        pass

    for kind in (ValueError, KeyError, Odd):
        failure = crew.worker_failed("rank 1 …", 1, kind)
        assert isinstance(failure, kind)
        assert (str(failure), failure.rank) == ("rank 1 …", 1)
    again = pickle.loads(pickle.dumps(crew.worker_failed("rank 1 …", 1, KeyError)))
    assert isinstance(again, KeyError)
    assert (str(again), again.rank) == ("rank 1 …", 1)
    assert str(crew.worker_failed("no", 0, crew.WorkerFailed)) == "no"


def test_what_ray_says_of_an_end_is_cut_to_the_cause():
    said = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: X\n\tpid: 7\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        "Worker exit detail: End of file. Some common causes include: (1) many."
    )
    assert crew._why_it_died(said) == (
        "its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End of "
        "file"
    )
    assert crew._why_it_died("the actor\nis gone.") == "the actor is gone"


def test_recordings_do_not_replace_files(tmp_path: Any):
    asked = recording.asked_for({"HOROVOD_TIMELINE": str(tmp_path / "new" / "t.json")})
    assert asked is not None
    assert asked.on_nodes() == {"HOROVOD_TIMELINE": f"{asked.folder}/t.json"}
    assert recording.asked_for({"HOROVOD_TIMELINE": "dynamic"}) is None
    assert recording.asked_for({}) is None
    files = {"t.json": b"0", "t.rank1.json": b"1"}
    first = recording.save(asked.path, files, joins=False)
    second = recording.save(asked.path, files, joins=False)
    assert (first, second) == (asked.path, asked.path.replace("t.json", "t-2.json"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == {
        "t.json": b"0", "t.rank1.json": b"1", "t-2.json": b"0", "t-2.rank1.json": b"1",
    }  # fmt: skip


def test_horovods_names_lead_here():
    alias = os.path.join(os.path.dirname(hvdtune.__file__), "_alias")
    program = (
        f"import sys; sys.path.insert(0, {alias!r})\n"
        "import hvdtune.ray, horovod.ray\n"
        "from horovod.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor, ray_logger\n"
        "from horovod.ray.adapter import Adapter, BaseParams\n"
        "from horovod.ray.elastic import ElasticRayExecutor, RayHostDiscovery, TestDiscovery\n"
        "from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams\n"
        "from horovod.ray.runner import Coordinator, MiniSettings, StaticAdapter, StaticParams\n"
        "from horovod.ray.strategy import ColocatedStrategy, PGStrategy, create_placement_group\n"
        "from horovod.ray.utils import detect_nics, map_blocking, nics_to_env_var\n"
        "assert horovod.ray is hvdtune.ray\n"
        "try:\n"
        "    import horovod.ray.driver_service\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "ranks on Ray meet at the addresses that Ray uses" in ended.stdout


def test_without_ray_one_sentence_says_what_to_install():
    program = "import sys; sys.modules['ray'] = None; import hvdtune.ray"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ImportError: hvdtune.ray needs Ray 2.9 or newer" in ended.stderr
    assert "pip install 'hvdtune[ray]'" in ended.stderr


def test_every_row_of_the_compatibility_page_and_every_import():
    program = (
        "import generate_compatibility as generator\n"
        "rows = generator.compared_rows('ray')\n"
        "for module, every in rows.items():\n"
        "    for row in every:\n"
        "        said = generator.stated(module, row.name)\n"
        "        assert (row.status, row.difference) == said, (module, row)\n"
        "for statement in generator.public_imports_table.RAY:\n"
        "    assert generator.outcome(statement) == 'works', statement\n"
        "print(sum(map(len, rows.values())))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=DOCS, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 30
