import os
import socket

import pytest

from hvdtune.core.topology import Topology, TopologyError, detect, sub_job


def place(topology):
    return (
        topology.rank,
        topology.size,
        topology.local_rank,
        topology.local_size,
        topology.cross_rank,
        topology.cross_size,
    )


HVDTUNE = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "6",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "3",
    "HOROVOD_HOSTNAME": "node1",
    "HVDTUNE_JOB_ID": "abc",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-123@1",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_TASKS_PER_NODE": "4,2,1",
}


def test_the_launchers_own_variables():
    topology = detect(HVDTUNE)
    assert place(topology) == (3, 6, 1, 2, 1, 3)
    assert (topology.hostname, topology.job_id, topology.launcher) == ("node1", "abc", "hvdtune")


def test_rank_and_size_alone_mean_one_host():
    assert place(detect({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"})) == (1, 3, 1, 3, 0, 1)


def test_hvdtune_run_inside_another_launcher_wins():
    assert detect({**SLURM, **TORCHRUN, **OPEN_MPI, **HVDTUNE}).launcher == "hvdtune"
    assert detect({**SLURM, **TORCHRUN, **OPEN_MPI}).launcher == "openmpi"
    assert detect({**SLURM, **TORCHRUN}).launcher == "torchrun"


def test_open_mpi():
    topology = detect(OPEN_MPI)
    assert place(topology) == (2, 4, 2, 4, 0, 1)
    assert topology.job_id == "prterun-host-123@1"
    assert topology.hostname == socket.gethostname()


def test_who_has_started_the_launcher_may_name_the_job():
    """As under jsrun: ranks of several hosts are no children of one process."""
    unnamed = {name: text for name, text in OPEN_MPI.items() if name != "PMIX_NAMESPACE"}
    assert detect({**unnamed, "HVDTUNE_JOB_ID": "abc"}).job_id == "abc"
    assert detect({**OPEN_MPI, "HVDTUNE_JOB_ID": "abc"}).job_id == OPEN_MPI["PMIX_NAMESPACE"]
    assert detect(unnamed).job_id


def test_mpich_and_intel_mpi():
    topology = detect(
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    )
    assert place(topology) == (3, 4, 1, 2, 1, 2)
    assert topology.launcher == "pmi"
    # No variable names the job: the process that started the ranks does.
    assert str(os.getppid()) in topology.job_id
    assert topology.job_id == detect({"PMI_RANK": "0", "PMI_SIZE": "4"}).job_id


def test_jsrun_without_mpi():
    own = {"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4", "PMIX_NAMESPACE": "j"}
    local = {"JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "2"}
    topology = detect({**own, **local})
    assert topology[:6] == (3, 4, 1, 2, 1, 2)
    assert (topology.job_id, topology.launcher) == ("j", "jsm")
    assert detect(own).local_size == 4


def test_torchrun_jobs_with_the_default_run_id_differ():
    topology = detect(TORCHRUN)
    assert place(topology) == (1, 2, 1, 2, 0, 1)
    assert topology.job_id == detect({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}).job_id
    assert topology.job_id != detect({**TORCHRUN, "MASTER_PORT": "29501"}).job_id
    assert topology.job_id != detect({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).job_id


def test_slurm_counts_tasks_per_node():
    topology = detect(SLURM)
    assert place(topology) == (5, 7, 1, 2, 1, 2)
    assert topology.job_id == "77/0"
    wide = {**SLURM, "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NTASKS": "8"}
    assert place(detect(wide)) == (5, 8, 1, 4, 1, 2)


@pytest.mark.parametrize("step", [None, "4294967291", "4294967290"])
def test_a_slurm_batch_or_interactive_shell_is_one_process(step):
    environ = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}
    if step:
        environ["SLURM_STEP_ID"] = step
    assert detect(environ).launcher == "single"


def test_no_launcher():
    topology = detect({})
    assert place(topology) == (0, 1, 0, 1, 0, 1)
    assert topology.launcher == "single"
    assert topology.job_id != detect({}).job_id


def test_a_stray_world_size_is_not_a_launcher():
    assert detect({"WORLD_SIZE": "8"}).launcher == "single"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HOROVOD_RANK": "0"}, ["HOROVOD_RANK=0 is set but HOROVOD_SIZE is not"]),
        ({"HOROVOD_SIZE": "2"}, ["HOROVOD_SIZE=2 is set but HOROVOD_RANK is not"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE"]),
        ({"PMI_SIZE": "2"}, ["PMI_RANK"]),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}, ["WORLD_SIZE"]),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"}, ["HOROVOD_RANK=2", "HOROVOD_SIZE=2"]),
        ({"HOROVOD_RANK": "-1", "HOROVOD_SIZE": "2"}, ["HOROVOD_RANK=-1"]),
        ({"HOROVOD_RANK": "one", "HOROVOD_SIZE": "2"}, ["HOROVOD_RANK='one'", "whole number"]),
        ({**HVDTUNE, "HOROVOD_LOCAL_SIZE": "1"}, ["HOROVOD_LOCAL_RANK=1"]),
    ],
)
def test_contradictions_are_named(environ, words):
    with pytest.raises(TopologyError) as error:
        detect(environ)
    for word in words:
        assert word in str(error.value)


def world_of(rank, local_size, size):
    """A job of hosts that have `local_size` processes each."""
    return Topology(
        rank, size, rank % local_size, local_size, rank // local_size, size // local_size,
        "here", "job", "hvdtune",
    )  # fmt: skip


def test_some_ranks_form_a_job_in_the_order_of_their_list():
    job = sub_job(world_of(3, 4, 4), [3, 1])
    assert place(job) == (0, 2, 0, 2, 0, 1)
    assert place(sub_job(world_of(1, 4, 4), [3, 1])) == (1, 2, 1, 2, 0, 1)
    assert job.job_id == sub_job(world_of(1, 4, 4), [3, 1]).job_id
    shuffled = detect({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0"})  # rank 2
    assert place(sub_job(shuffled, [0, 2])) == (1, 2, 1, 2, 0, 1)
    others = {sub_job(world_of(3, 4, 4), ranks).job_id for ranks in ([1, 3], [3], [0, 3, 1])}
    assert len({job.job_id, "job", *others}) == 5


def test_all_ranks_in_their_order_are_the_whole_job():
    assert sub_job(world_of(1, 2, 2), range(2)) == world_of(1, 2, 2)
    assert sub_job(world_of(1, 2, 2), (1, 0)).rank == 0


def test_a_job_of_some_ranks_of_several_hosts():
    # hosts (0, 1), (2, 3), (4, 5); the second has one process in the job
    ranks = [5, 0, 1, 3, 4]
    places = {rank: place(sub_job(world_of(rank, 2, 6), ranks)) for rank in ranks}
    assert places == {
        5: (0, 5, 0, 2, 0, 3),
        0: (1, 5, 0, 2, 1, 3),
        1: (2, 5, 1, 2, 0, 2),
        3: (3, 5, 0, 1, 2, 3),
        4: (4, 5, 1, 2, 1, 2),
    }


@pytest.mark.parametrize(
    ("ranks", "error", "words"),
    [
        ([0, 2], ValueError, r"init\(comm=\[0, 2\]\): this process, rank 1 of 4, is not in"),
        ([1, 4], ValueError, "there is no rank 4; the launcher started ranks 0 to 3"),
        ([-1, 1], ValueError, "there is no rank -1"),
        ([1, 0, 1], ValueError, "rank 1 is given twice"),
        ([1, 2.0], TypeError, "ints, not float"),
        ("01", TypeError, "ints, not str"),
        ([True], TypeError, "ints, not bool"),
    ],
)
def test_lists_that_form_no_job(ranks, error, words):
    with pytest.raises(error, match=words):
        sub_job(world_of(1, 4, 4), ranks)
