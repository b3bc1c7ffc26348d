"""init(comm=…): lists of ranks and mpi4py communicators make jobs of some of the processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rank_programs import init_comm
from support.jobs.ranks import RanksResult, mpirun_command, run_ranks, run_under


def under_mpirun(np: int, program: Any) -> RanksResult:
    result = run_under(mpirun_command(np), program)
    assert result[0].stderr == "", result.describe()
    return result


def job(rank: int, world_ranks: list[int]) -> dict[str, Any]:
    """What the process of this number in the job of these processes sees, on one host."""
    size = len(world_ranks)
    return {
        "rank": (rank, size),
        "local": (rank, size),
        "cross": (0, 1),
        "world ranks": world_ranks,
        "sums": {float(sum(world_ranks))},
    }


def test_disjoint_lists_are_independent_jobs() -> None:
    lists = [[2, 0], [3, 1]]
    values = run_ranks(4, init_comm.jobs_of_lists, lists).values
    for me, (first, all_together, again) in enumerate(values):
        mine = next(ranks for ranks in lists if me in ranks)
        assert first == again == job(mine.index(me), mine)
        assert all_together == job(me, [0, 1, 2, 3])


def test_lists_that_form_no_job() -> None:
    for rank, seen in enumerate(run_ranks(3, init_comm.wrong_lists).values):
        if rank == 1:
            assert seen["not in the list"][0] == "ValueError"
            assert "init(comm=[0, 2]): this process, rank 1 of 3" in seen["not in the list"][1]
        else:
            assert seen["not in the list"] == ("", "None")
        assert seen["up"] == ("", str(rank != 1))
        for case, kind, words in (
            ("out of range", "ValueError", "there is no rank 3"),
            ("negative", "ValueError", "there is no rank -1"),
            ("twice", "ValueError", "rank 1 is given twice"),
            ("numpy ints", "TypeError", "ints, not int64"),
            ("text", "TypeError", "ints, not str"),
            ("not iterable", "ValueError", "a list of ranks or an mpi4py communicator, not 3"),
            ("an object", "ValueError", "a list of ranks or an mpi4py communicator"),
        ):
            assert seen[case][0] == kind, (case, seen[case])
            assert words in seen[case][1], (case, seen[case])
        assert seen["while initialised"] == ("", "None")


def test_communicators_need_mpirun() -> None:
    # Without mpirun Open MPI's own shared memory leaves a file in /dev/shm.
    result = run_ranks(2, init_comm.mpi_without_mpirun, env={"OMPI_MCA_btl": "self"})
    for rank, seen in enumerate(result.values):
        assert seen["world"][0] == "ValueError"
        assert "MPI knows this process alone, but its launcher started 2" in seen["world"][1]
        assert seen["set"][0] == "ValueError"
        assert f"this process is rank {rank} of 2, but rank 0 of 1 for MPI" in seen["set"][1]
        assert seen["self"] == ("", "None")
        assert seen["size"] == ("", "1")


def test_disjoint_communicators_are_independent_jobs() -> None:
    for me, seen in enumerate(under_mpirun(4, init_comm.jobs_of_communicators).values):
        half = [3, 1] if me % 2 else [2, 0]
        own = job(half.index(me), half)
        everybody = job(me, [0, 1, 2, 3])
        # mpirun numbers a host's processes in an order of its own.
        place, size = seen[-1].pop("local")
        assert 0 <= place < size == 4
        whole = {key: value for key, value in everybody.items() if key != "local"}
        assert seen == [own, everybody, own, whole]


def test_a_process_of_a_communicator_that_does_not_come(tmp_path: Path) -> None:
    done = str(tmp_path / "done")
    result = run_under(mpirun_command(2), init_comm.one_does_not_come, done)
    assert result.values[0] == ("", "False")
    kind, text = result.values[1]
    assert kind == "ValueError"
    assert "init(comm=MPI_COMM_WORLD): not all of its 2 processes have called init()" in text
    assert "within 1 s; HOROVOD_START_TIMEOUT" in text


def test_sets_of_communicators() -> None:
    for me, seen in enumerate(under_mpirun(4, init_comm.sets_of_communicators).values):
        half = [1, 3] if me % 2 else [0, 2]
        assert seen["before"] == (None, None, None, None)
        assert seen["ranks"] == half
        assert seen["place"] == (2, half.index(me), True)
        assert seen["ids"] == [3 if me % 2 else 2, 1] + [4] * (me > 0)
        assert seen["sum"] == [sum(half)]
        assert seen["later"] == ([me], 5 + me)
        assert seen["text"] is True
        assert seen["duplicate"][0] == "ValueError"
        assert "process set 1 of init(), [0, 1, 2, 3], is a duplicate" in seen["duplicate"][1]
        assert set(seen["ids after"]) == {None}
        assert seen["without comm"] == (half, 2 if me % 2 else 1)
        assert seen["added"][0] == "NotImplementedError"
        if me == 0:
            assert seen["null"][0] == "ValueError"
            assert "MPI.COMM_NULL" in seen["null"][1]


def test_communicators_that_cannot_be_used() -> None:
    for seen in under_mpirun(4, init_comm.wrong_communicators).values:
        for case, kind, words in (
            ("null", "ValueError", "MPI.COMM_NULL is no communicator"),
            ("two groups", "ValueError", "is an inter-communicator"),
            ("set of two groups", "ValueError", "is an inter-communicator"),
            ("group", "ValueError", "an iterable of ranks or an mpi4py communicator"),
            ("list of communicators", "TypeError", "ints, not Intracomm"),
            ("list of ranks and a set", "NotImplementedError", "not a list of ranks"),
            ("set outside the job", "ValueError", "2 of the 4 processes of MPI_COMM_WORLD are not"),
            ("set later", "NotImplementedError", "a job made from a list of ranks"),
            ("finalised", "ValueError", "MPI is finalised"),
        ):
            assert seen[case][0] == kind, (case, seen[case])
            assert words in seen[case][1], (case, seen[case])
