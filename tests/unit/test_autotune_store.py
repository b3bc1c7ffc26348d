"""What is remembered from run to run, and what happens to a file that is not as it should be."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.models.simulated_training import MIB

from hvdtune.autotune.memory import identity
from hvdtune.autotune.memory.identity import Signature
from hvdtune.autotune.memory.store import (
    CorruptStoreError,
    Profile,
    Store,
    StoreError,
    default_path,
    key_of,
    open_store,
)
from hvdtune.autotune.report import words as account
from hvdtune.cli.main import main
from hvdtune.settings import knobs

START = {"fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0}
BEST = {"fusion_threshold": 32 * MIB, "cycle_time": 0.31, "chunk_size": 65536}


def job(tensors: int = 10) -> dict[str, object]:
    return identity.describe(
        {"tensors": tensors, "bytes": 1000},
        size=4, local_size=4, cpus=2, version="0.1", fixed={}, engine={}, processor="P",
    )  # fmt: skip


def profile(tensors: int = 10, **changes: object) -> Profile:
    made = Profile(
        identity=job(tensors), values=dict(BEST), start=dict(START), verdict="adopted: 4.2 %",
        when="2026-01-31T12:00:00Z", program="train.py", gain=0.042, margin=0.011,
        step_time_ms=12.5, steps=612, seconds=41.3,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "store.json")


def test_what_is_put_is_read_by_the_next_run(store: Store) -> None:
    assert store.read() == {}
    assert store.put(profile()) is None
    store.put(profile(20, program="other.py"))
    store.put(profile(verdict="newer"))
    read = Store(store.path).read()
    assert list(read) == [key_of(job(20)), key_of(job())]
    assert read[key_of(job())] == profile(verdict="newer")
    # Nothing but the file and its lock is left of the writing.
    assert sorted(os.listdir(store.path.parent)) == ["store.json", "store.json.lock"]


def test_the_key_depends_on_the_job_alone() -> None:
    assert key_of(job()) == key_of(json.loads(json.dumps(job())))
    others = [{**job(), name: "other"} for name in job()]
    assert len({key_of(job()), *map(key_of, others)}) == 1 + len(others)


def test_several_jobs_at_once_lose_nothing(store: Store) -> None:
    patient = Store(store.path, patience_s=60.0)
    threads = [threading.Thread(target=patient.put, args=(profile(at),)) for at in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.read()) == 16


def put_and_forget(store: Store, numbers: range) -> None:
    """As jobs of one user do: each remembers something, and forgets every other one."""
    for at in numbers:
        store.put(profile(at))
        if at % 2:
            assert store.forget(key_of(job(at)).__eq__) == [key_of(job(at))]


def test_processes_that_write_while_others_read_lose_nothing(store: Store) -> None:
    patient = Store(store.path, patience_s=60.0)
    writers = [
        multiprocessing.get_context("fork").Process(
            target=put_and_forget, args=(patient, range(at, at + 8))
        )
        for at in (0, 8, 16, 24)
    ]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers) or not reads:
        found = store.read()
        assert all(key == key_of(one.identity) and one.steps == 612 for key, one in found.items())
        reads += 1
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(store.read()) == 16


def test_a_lock_that_is_never_given_back_is_not_waited_for(store: Store) -> None:
    store.put(profile())
    with open(f"{store.path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="is locked by another process"):
            Store(store.path, patience_s=0.0).put(profile(20))
    assert len(store.read()) == 1


NEWER = json.dumps({"format": "hvdtune autotune store", "version": 2, "profiles": 5})
STORED = {"format": "hvdtune autotune store", "version": 1}


def with_profile(**changes: object) -> str:
    fields = {**json.loads(json.dumps(profile().__dict__)), **changes}
    return json.dumps({**STORED, "profiles": {key_of(job()): fields}})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "Expecting value"),
        ("{", "is not an autotune store"),
        ('{\n "format": "hvdtune auto', "Unterminated string"),
        (with_profile()[:-20], "is not an autotune store"),
        (with_profile() + "\xff", "not text"),
        (json.dumps(STORED)[:-1] + ', "profiles": ' + "[" * 200_000, "nested too deeply"),
        (json.dumps(STORED), "'profiles' is missing"),
        (json.dumps({**STORED, "profiles": {"a": {}}}), "missing"),
        (with_profile(values={"cycle_time": -1.0}), "cycle_time is -1.0, which is not accepted"),
        (with_profile(values={"cycle_time": "1"}), "is not a number"),
        (with_profile(values={"colour": 1}), "'colour' is not a setting that may be tuned"),
        (with_profile(values={"fusion_threshold": float("inf")}), "cannot convert"),
        (with_profile(gain=float("nan")), "a profile holds the number nan"),
        (with_profile(identity={"other": 1}), "has another profile's identity"),
        (with_profile(colour=1), "colour"),
        (with_profile(gain=10**400), "too large"),
        (with_profile(steps=10**400), "too large"),
        (with_profile(values={"cycle_time": 10**400}), "is not an autotune store"),
        (with_profile(steps=1.5), "is not a whole number"),
        (with_profile(seconds=None), "None, which is not a number"),
        (with_profile(when=5), "'when' is not text"),
        (with_profile(program=["x"]), "'program' is not text"),
        (with_profile(verdict=None), "'verdict' is not text"),
    ],
)
def test_a_corrupt_file_is_moved_aside_not_lost(store: Store, content: str, words: str) -> None:
    store.path.parent.mkdir()
    store.path.write_bytes(content.encode("latin-1"))
    with pytest.raises(CorruptStoreError, match="is not an autotune store") as caught:
        store.read()
    assert words in str(caught.value)
    moved = store.put(profile())
    assert moved == Path(f"{store.path}.corrupt")
    assert moved.read_bytes() == content.encode("latin-1")
    assert list(store.read()) == [key_of(job())]


def test_a_second_corrupt_file_does_not_replace_the_first(store: Store) -> None:
    store.path.parent.mkdir()
    for text in ("{", json.dumps(STORED)):
        store.path.write_text(text)
        moved = store.put(profile())
        assert moved is not None
        assert moved.read_text() == text


@pytest.mark.parametrize(
    "content",
    ["import torch\n", "\xff", "[]", "1", '{"format": "other"}', '{"lr": 0.1'],
)
def test_what_is_no_store_is_left_as_it_is(store: Store, content: str) -> None:
    store.path.parent.mkdir()
    store.path.write_bytes(content.encode("latin-1"))
    for use in (store.read, lambda: store.put(profile()), lambda: store.forget(bool)):
        with pytest.raises(StoreError, match="is not an autotune store, left as it is") as caught:
            use()
        assert not isinstance(caught.value, CorruptStoreError)
    assert store.path.read_bytes() == content.encode("latin-1")
    assert os.listdir(store.path.parent) == ["store.json"]


def test_a_device_or_a_pipe_is_left_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(StoreError, match="it is not a regular file"):
            Store(path).put(profile())
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_linked_store_stays_a_link_and_the_mode_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    Store(link).put(profile())
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
    target.chmod(0o640)
    Store(link).put(profile(20))
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert len(Store(target).read()) == 2
    assert sorted(os.listdir(tmp_path)) == ["link.json", "target.json", "target.json.lock"]


def test_a_newer_versions_file_stays_as_it_is(store: Store) -> None:
    store.path.parent.mkdir()
    store.path.write_text(NEWER)
    for use in (store.read, lambda: store.put(profile())):
        with pytest.raises(StoreError, match="written by a newer hvdtune"):
            use()
    assert store.path.read_text() == NEWER


@pytest.mark.parametrize("place", ["folder", "file/store.json", "folder/x" * 40])
def test_a_place_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be (read|written)"):
        Store(tmp_path / place / ("y" * 300 if "x" in place else "")).put(profile())


def test_where_the_store_is() -> None:
    assert default_path({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/hvdtune/autotune.json")
    assert default_path({}) == Path("~/.cache/hvdtune/autotune.json").expanduser()
    assert default_path({"XDG_CACHE_HOME": "relative"}) == default_path({})
    assert open_store("") is None
    with pytest.raises(StoreError, match="~no-such-user is nobody's home folder"):
        open_store("~no-such-user/s.json")
    with pytest.raises(StoreError, match="there is no home folder"):
        default_path({"HOME": ""})
    named = open_store("~/s.json")
    assert named is not None
    assert named.path == Path("~/s.json").expanduser()


class Step:
    def __init__(self, tensors: int, size: int) -> None:
        self.tensors, self.bytes = tensors, size


def test_the_signature_is_what_most_steps_do() -> None:
    signature = Signature()
    assert signature.work() is None
    for step in (Step(3, 77), *(Step(10, 1000) for _ in range(9)), Step(11, 1004)):
        signature.add(step)
    assert signature.work() == {"tensors": 10, "bytes": 1000}


def test_work_that_changes_all_the_time_is_known_by_its_size() -> None:
    signature = Signature()
    for at in range(20):
        signature.add(Step(100 + at, 123_000 + at))
    assert signature.work() == {"tensors": 110, "bytes": 120_000}


def test_an_export_means_the_same_in_every_form(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    from hvdtune.launch.config_file import read_config_file

    environ = knobs.from_environ(account.as_environment(BEST))
    assert {key: getattr(environ, key) for key in BEST} == BEST
    path = tmp_path / "settings.yaml"
    path.write_text(account.as_yaml(BEST))
    assert read_config_file(str(path)).values == BEST
    assert account.as_flags({**BEST, "fusion_threshold": 4096}) == [
        "--fusion-threshold-mb", "4096B", "--cycle-time-ms", "0.31", "--chunk-size", "65536",
    ]  # fmt: skip


def test_the_changes_in_words() -> None:
    assert account.changes(START, BEST) == (
        "HOROVOD_FUSION_THRESHOLD 128 MiB → 32 MiB, HOROVOD_CYCLE_TIME 1 ms → 0.31 ms, "
        "HVDTUNE_CHUNK_SIZE automatic → 64 KiB"
    )
    assert account.changes(START, START) == ""


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["autotune", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_list_show_export_and_forget(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--autotune-store", str(store.path))
    assert call(capsys, "list", *where) == (0, f"nothing is remembered in {store.path}\n", "")
    store.put(profile())
    store.put(profile(20, values=dict(START)))
    key = key_of(job())
    status, out, _ = call(capsys, "list", *where)
    assert (status, len(out.splitlines())) == (0, 3)
    assert f"{key}  2026-01-31 12:00  train.py  4" in out
    assert "4.2 ± 1.1 %  HOROVOD_FUSION_THRESHOLD 128 MiB → 32 MiB" in out
    assert "as at the start" in out
    assert list(json.loads(call(capsys, "list", "--json", *where)[1])) == list(store.read())
    status, out, _ = call(capsys, "show", key[:4], *where)
    assert "HVDTUNE_CHUNK_SIZE = 64 KiB (was automatic)" in out
    assert "work: tensors 10, bytes 1000" in out
    assert json.loads(call(capsys, "show", key, "--json", *where)[1])["gain"] == 0.042
    assert call(capsys, "export", key, *where)[1] == (
        "export HOROVOD_FUSION_THRESHOLD=33554432\nexport HOROVOD_CYCLE_TIME=0.31\n"
        "export HVDTUNE_CHUNK_SIZE=65536\n"
    )
    assert call(capsys, "export", key, "--format", "flags", *where)[1] == (
        "--fusion-threshold-mb 32 --cycle-time-ms 0.31 --chunk-size 65536\n"
    )
    assert "fusion_threshold_mb: 32\n" in call(capsys, "export", key, "--format=yaml", *where)[1]
    assert call(capsys, "forget", key, *where)[1] == f"forgot 1 profile of {store.path}\n"
    assert len(store.read()) == 1
    assert call(capsys, "forget", "--all", *where)[0] == 0
    assert store.read() == {}


def test_mistakes_are_one_sentence(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--autotune-store", str(store.path))
    store.put(profile())
    status, _, err = call(capsys, "show", "zzz", *where)
    assert status == 2
    assert err.startswith("hvdtune autotune: no profile's key begins with 'zzz' in ")
    assert call(capsys, "forget", *where)[0] == 2
    assert call(capsys, "list")[2] == (  # the tests' own setting
        "hvdtune autotune list: HVDTUNE_AUTOTUNE_STORE is empty, so nothing is remembered; "
        "name a file.\n"
    )
    assert (
        "autotune list: --autotune-store is empty,"
        in call(capsys, "list", "--autotune-store", "")[2]
    )
    store.path.write_text("{")
    status, out, err = call(capsys, "list", *where)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "is not an autotune store" in err
