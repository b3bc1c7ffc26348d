"""Forked ranks are what ranks in interpreters of their own are, and nothing is left of them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_programs import processes
from support.jobs import ranks as ranks_module
from support.jobs.leftovers import left_by_test, look
from support.jobs.nursery import MARK, NUMPY, Nurseries, Nursery, NurseryFailed, Order, imports_of
from support.jobs.ranks import clean_environment, new_job, run_ranks, start_ranks

TESTS = Path(__file__).parents[1]


def is_forked(parent: int) -> bool:
    assert ranks_module.nurseries is not None
    return parent in ranks_module.nurseries.pids


def test_a_forked_rank_finds_what_a_fresh_one_finds() -> None:
    job: dict[str, str | None] = {
        **new_job(),
        **{"TMPDIR": "/", "TZ": "Asia/Tokyo", "WITH_A_LINE": "one\ntwo", "HOME": None},
    }
    forked, fresh = (
        run_ranks(2, processes.describe, env=job, fresh=fresh).values for fresh in (False, True)
    )
    for rank in range(2):
        assert forked[rank] == fresh[rank]
        assert forked[rank]["modules"] == set()
        assert forked[rank]["descriptors"] == ["0", "1", "2"]
        assert "HOME" not in forked[rank]["environment"]


def test_every_rank_draws_other_numbers() -> None:
    pytest.importorskip("torch")
    from rank_programs import random_numbers

    ranks = run_ranks(3, random_numbers.first_numbers).values
    for source in ("python", "numpy", "torch"):
        assert len({rank[source] for rank in ranks}) == 3, source
    # As that of a set, the order may not be the same on all ranks of a job.
    assert ranks[0]["hash"] != ranks[1]["hash"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("by returning", 0), ("fail", 1), ("with a number", 3), ("with a text", 1), ("at once", 5),
        ("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM), ("interrupt", -signal.SIGINT),
    ],
)  # fmt: skip
def test_ways_to_end(how: str, code: int) -> None:
    forked, fresh = (
        run_ranks(1, processes.end, how, check=False, fresh=fresh) for fresh in (False, True)
    )
    assert forked[0].returncode == fresh[0].returncode == code, forked.describe()
    assert forked[0].stdout == fresh[0].stdout
    assert forked.values == fresh.values
    # The frames of a traceback differ: who called the rank's function is another file.
    assert forked[0].stderr.splitlines()[-1:] == fresh[0].stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    ("environment", "fresh", "forked"),
    [
        ({}, False, True), ({}, True, False), ({"HOROVOD_CYCLE_TIME": "2"}, False, True),
        ({"OMP_NUM_THREADS": "2"}, False, False), ({"LD_PRELOAD": ""}, False, False),
        ({"PYTHONUNBUFFERED": None}, False, False), ({MARK: "short"}, False, False),
    ],
)  # fmt: skip
def test_who_is_forked(environment: dict[str, str | None], fresh: bool, forked: bool) -> None:
    run_ranks(1, processes.parent)  # the nurseries are there
    values = run_ranks(3, processes.parent, env=environment, fresh=fresh).values
    assert [is_forked(parent) for parent in values] == [forked] * 3


def test_what_a_program_imports_decides_what_is_imported_before() -> None:
    pytest.importorskip("torch")
    from conformance import numpy_face, torch_face
    from rank_programs import random_numbers, torch_cases, torch_optimizer_programs

    for module in (random_numbers, torch_cases, torch_optimizer_programs, torch_face):
        assert "torch" in imports_of(module.__name__)
    for module in (processes, numpy_face):
        assert imports_of(module.__name__) == NUMPY


def test_what_frameworks_read_at_their_start_decides_who_forks() -> None:
    nurseries = Nurseries(clean_environment({"KERAS_BACKEND": "torch"}))
    plain = clean_environment()
    other = {**plain, "KERAS_BACKEND": "jax"}
    assert nurseries.suit(other, (*NUMPY, "keras"))
    assert not nurseries.suit({**other, "OMP_NUM_THREADS": "7"}, (*NUMPY, "keras"))
    assert nurseries.suit(plain, NUMPY)
    assert not nurseries.suit({**plain, "CUDA_VISIBLE_DEVICES": "7"}, NUMPY)
    assert nurseries.suit({**plain, "CUDA_VISIBLE_DEVICES": "7"}, (*NUMPY, "jax"))


def test_neighbours_come_from_different_nurseries() -> None:
    first, second, third = run_ranks(3, processes.parent).values
    assert first == third != second


def test_a_command_in_front_is_a_fresh_process() -> None:
    with start_ranks(2, processes.parent, prefix=lambda rank: ["nice"] * rank) as ranks:
        assert list(map(is_forked, ranks.wait().values)) == [True, False]


def test_a_running_rank_answers_as_a_process_does() -> None:
    with start_ranks(1, processes.wait_for_end) as ranks:
        (process,) = ranks.processes
        ranks.wait_for_output(0, "waiting")  # though it ends no line
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == process.wait() == process.poll() == -signal.SIGTERM
        process.send_signal(signal.SIGTERM)  # who has ended gets no signal


def test_an_ended_rank_keeps_its_pid_until_it_is_asked() -> None:
    with start_ranks(1, processes.parent) as ranks:
        pid = ranks.pid(0)
        end = os.pidfd_open(pid)
        assert select.select([end], [], [], 60)[0]
        os.close(end)
        assert "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
        ranks.wait()
        assert not Path(f"/proc/{pid}").exists()


def test_a_rank_that_survives_is_found() -> None:
    before = look(os.environ[MARK])
    with start_ranks(1, processes.wait_for_end) as ranks:
        ranks.wait_for_output(0, "waiting")
        entry = f"\0{MARK}={before.mark}\0".encode()
        assert entry in b"\0" + Path(f"/proc/{ranks.pid(0)}/environ").read_bytes()
        (left,) = left_by_test(before, grace=0.0)
        assert f"process {ranks.pid(0)} still runs" in left
        assert ranks.wait(60, check=False)[0].returncode == -signal.SIGKILL
    assert left_by_test(before) == []


def test_what_a_rank_leaves_behind_is_found() -> None:
    before = look(os.environ[MARK])
    run_ranks(1, processes.leave_a_process)
    (left,) = left_by_test(before, grace=0.2)
    assert "time.sleep(600)" in left
    assert left_by_test(before) == []


WITH_NURSERIES = """
import os, sys
from support.jobs import nursery, ranks
ranks.nurseries = nursery.Nurseries(ranks.clean_environment())
from rank_programs import processes
ranks.run_ranks(1, processes.parent)
print(*ranks.nurseries.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_nurseries_end_with_who_started_them(killed: bool) -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = subprocess.Popen(
        [sys.executable, "-c", WITH_NURSERIES],
        env=clean_environment({"PYTHONPATH": path}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        ends = [os.pidfd_open(int(pid)) for pid in program.stdout.readline().split()]
        assert len(ends) == 2
        if killed:
            program.kill()
        else:
            program.communicate()
        for end in ends:
            assert select.select([end], [], [], 60)[0], "a nursery still runs"
            os.close(end)


def test_a_nursery_with_a_thread_is_refused(tmp_path: Path) -> None:
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True)"
    (tmp_path / "sitecustomize.py").write_text(program + ".start()\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.raises(NurseryFailed, match="it has threads, and must have none"):
        Nursery(clean_environment({"PYTHONPATH": path}))


def test_a_rank_that_cannot_begin(tmp_path: Path) -> None:
    nurseries = Nurseries(clean_environment())
    order = Order(["python"], {}, str(tmp_path / "none"), os.devnull, os.devnull)
    try:
        with pytest.raises(NurseryFailed, match=r"(?s)ended before it began.*none"):
            nurseries.fork(0, order)
    finally:
        nurseries.close()
