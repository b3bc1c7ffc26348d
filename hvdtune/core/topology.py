"""Rank, size and host of this process, read from the environment of its launcher.

`hvdtune run` (and horovodrun), Open MPI, MPICH and Intel MPI, IBM's jsrun, torchrun and Slurm each
describe a process with variables of their own. No launcher's variables means a job of one process.
Nothing is contacted: this is a pure function of the environment (and of the parent's identity if
a launcher gives its job no other name).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Slurm numbers the steps that are not started by srun from the top: batch script, interactive
# shell, external. Their SLURM_PROCID and SLURM_NTASKS describe the allocation, not the process.
_FIRST_SPECIAL_SLURM_STEP = 0xFFFFFFF0

Environ = Mapping[str, str]


class TopologyError(ValueError):
    """The launcher's variables contradict each other or are incomplete."""


class Topology(NamedTuple):
    """The place of one process in its job.

    `local_*` count the processes on the same host, `cross_*` the processes with the same local
    rank on other hosts. `job_id` is the same on all ranks of a job and differs between jobs that
    run at the same time. `launcher` is "hvdtune", "openmpi", "pmi", "jsm", "torchrun", "slurm",
    "single", or "mpi4py" for a job that a communicator describes.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    job_id: str
    launcher: str


def detect(environ: Environ = os.environ) -> Topology:
    """Find this process's place in its job.

    The first launcher whose variables are present decides, in the order of the module's text.
    Raises `TopologyError` if only one of rank and size is present, if a value is not a whole
    number, or if a rank is not below its size.
    """
    for find in _LAUNCHERS:
        topology = find(environ)
        if topology is not None:
            return topology
    job_id = f"single-{os.getpid()}-{os.urandom(8).hex()}"
    return Topology(0, 1, 0, 1, 0, 1, hostname_of(environ), job_id, "single")


def sub_job(whole: Topology, ranks: Sequence[object]) -> Topology:
    """The job that some of the launcher's ranks form: the k-th of `ranks` becomes its rank k.

    All ranks in their own order are the launcher's job itself. Hosts are assumed to be filled one
    after another.

    Raises TypeError for members that are not ints, ValueError for ranks that do not exist or are
    given twice, and on a process that is not among them.
    """
    members = _checked_members(whole, ranks)
    if members == list(range(whole.size)):
        return whole
    if whole.rank not in members:
        raise ValueError(
            f"init(comm={members}): this process, rank {whole.rank} of {whole.size}, is not in "
            "the list; it can join a job of other ranks, or none"
        )
    # On one host the local ranks may be in any order (mpirun's are).
    first_of_host = 0 if whole.local_size == whole.size else whole.rank - whole.local_rank
    on_host: dict[int, list[int]] = {}  # host, counted from this one -> its new ranks
    for new_rank, member in enumerate(members):
        on_host.setdefault((member - first_of_host) // whole.local_size, []).append(new_rank)
    rank, local = members.index(whole.rank), on_host[0]
    local_rank = local.index(rank)
    peers = sorted(there[local_rank] for there in on_host.values() if len(there) > local_rank)
    return whole._replace(
        rank=rank,
        size=len(members),
        local_rank=local_rank,
        local_size=len(local),
        cross_rank=peers.index(rank),
        cross_size=len(peers),
        job_id=f"{whole.job_id}/ranks={','.join(map(str, members))}",
    )


def _checked_members(whole: Topology, ranks: Sequence[object]) -> list[int]:
    members: list[int] = []
    for rank in ranks:
        if type(rank) is not int:
            raise TypeError(
                f"init(comm={list(ranks)!r}): the ranks of a job are ints, not "
                f"{type(rank).__name__}"
            )
        if not 0 <= rank < whole.size:
            raise ValueError(
                f"init(comm={list(ranks)!r}): there is no rank {rank}; the launcher started ranks "
                f"0 to {whole.size - 1}"
            )
        if rank in members:
            raise ValueError(f"init(comm={list(ranks)!r}): rank {rank} is given twice")
        members.append(rank)
    return members


def _from_horovod(environ: Environ) -> Topology | None:
    pair = _rank_and_size(environ, "HOROVOD_RANK", "HOROVOD_SIZE")
    if pair is None:
        return None
    job_id = environ.get("HVDTUNE_JOB_ID") or _joined(
        environ, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
    )
    local = _rank_and_size(environ, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
    cross = _rank_and_size(environ, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    return _build(environ, "hvdtune", pair, local, job_id, cross)


def _from_open_mpi(environ: Environ) -> Topology | None:
    pair = _rank_and_size(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if pair is None:
        return None
    local = _rank_and_size(environ, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    # PMIX_NAMESPACE names a job of Open MPI 5. Open MPI 4 has a job number, but that is a hash of
    # only 16 bits, so the address of its mpirun is added.
    job_id = _joined(environ, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")
    return _build(environ, "openmpi", pair, local, job_id)


def _from_pmi(environ: Environ) -> Topology | None:
    pair = _rank_and_size(environ, "PMI_RANK", "PMI_SIZE")
    if pair is None:
        return None
    local = _rank_and_size(environ, "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    cross = None
    if local is None and environ.get("SLURM_PROCID") == str(pair[0]) and slurm_step(environ):
        # srun --mpi=pmi2 gives the rest in Slurm's own variables.
        local, cross = _slurm_place(environ)
    job_id = _joined(environ, "PMI_JOBID") or _joined(environ, "SLURM_JOB_ID", "SLURM_STEP_ID")
    return _build(environ, "pmi", pair, local, job_id, cross)


def _from_jsm(environ: Environ) -> Topology | None:
    """A process that jsrun started, if it was told to start no MPI (`--smpiargs=off`)."""
    pair = _rank_and_size(environ, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
    if pair is None:
        return None
    local = None
    if _has(environ, "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"):
        local = _rank_and_size(environ, "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE")
    return _build(environ, "jsm", pair, local, _joined(environ, "PMIX_NAMESPACE", "LSB_JOBID"))


def _from_torchrun(environ: Environ) -> Topology | None:
    # RANK and WORLD_SIZE are common words: one of them alone is an error only if torchrun (or a
    # launcher with its variables) left another trace.
    both = _has(environ, "RANK", "WORLD_SIZE")
    pair = None
    if both or _has(environ, "TORCHELASTIC_RUN_ID"):
        pair = _rank_and_size(environ, "RANK", "WORLD_SIZE")
    if pair is None:
        return None
    local = cross = None
    if _has(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        local = _rank_and_size(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if _has(environ, "GROUP_RANK", "GROUP_WORLD_SIZE"):
        cross = _rank_and_size(environ, "GROUP_RANK", "GROUP_WORLD_SIZE")
    job_id = _joined(
        environ, "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"
    )
    return _build(environ, "torchrun", pair, local, job_id, cross)


def _from_slurm(environ: Environ) -> Topology | None:
    if not slurm_step(environ):
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    pair = _rank_and_size(environ, "SLURM_PROCID", size_name)
    if pair is None:
        return None
    local, cross = _slurm_place(environ)
    job_id = _joined(environ, "SLURM_JOB_ID", "SLURM_STEP_ID")
    return _build(environ, "slurm", pair, local, job_id, cross)


def slurm_step(environ: Environ) -> bool:
    """Whether this process is a task that srun started."""
    step = _integer(environ, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_SPECIAL_SLURM_STEP


def _slurm_place(environ: Environ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Local rank and size, cross rank and size of an srun task, as far as they are known."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    per_node = slurm_tasks_per_node(tasks)
    node = _integer(environ, "SLURM_NODEID") or 0
    local_rank = _integer(environ, "SLURM_LOCALID")
    if local_rank is None or node >= len(per_node):
        return None, None
    # Nodes with fewer tasks have no process of the higher local ranks.
    peers = [index for index, count in enumerate(per_node) if count > local_rank]
    cross = (peers.index(node), len(peers)) if node in peers else None
    return (local_rank, per_node[node]), cross


def slurm_tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's "4(x2),3" to [4, 4, 3]; anything else gives []."""
    counts: list[int] = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _build(
    environ: Environ,
    launcher: str,
    pair: tuple[int, int],
    local: tuple[int, int] | None,
    job_id: str,
    cross: tuple[int, int] | None = None,
) -> Topology:
    """Fill in what the launcher left out: one host, or hosts that are filled one after another."""
    rank, size = pair
    local_rank, local_size = local or pair
    if cross is None:
        cross = (rank // local_size, max(1, -(-size // local_size)))
    # If the ranks' own launcher does not name the job, the launcher above it may; otherwise they
    # are children of one process.
    job_id = job_id or environ.get("HVDTUNE_JOB_ID") or _parent_identity()
    return Topology(
        rank, size, local_rank, local_size, *cross,
        hostname=hostname_of(environ), job_id=job_id, launcher=launcher,
    )  # fmt: skip


_LAUNCHERS = (
    _from_horovod, _from_open_mpi, _from_pmi, _from_jsm, _from_torchrun, _from_slurm,
)  # fmt: skip


def _rank_and_size(environ: Environ, rank_name: str, size_name: str) -> tuple[int, int] | None:
    rank, size = _integer(environ, rank_name), _integer(environ, size_name)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        present, absent = (rank_name, size_name) if size is None else (size_name, rank_name)
        raise TopologyError(
            f"{present}={environ[present]} is set but {absent} is not: "
            "a launcher sets both or neither, so set or unset both."
        )
    if size < 1 or not 0 <= rank < size:
        raise TopologyError(
            f"{rank_name}={rank} and {size_name}={size} do not fit together: "
            f"{rank_name} must be from 0 to {size_name} - 1."
        )
    return rank, size


def _has(environ: Environ, *names: str) -> bool:
    return all(environ.get(name) for name in names)


def _integer(environ: Environ, name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise TopologyError(f"{name}={text!r} is not a whole number.")
    return int(text)


def _joined(environ: Environ, *names: str) -> str:
    return "/".join(environ[name] for name in names if environ.get(name))


def hostname_of(environ: Environ) -> str:
    """The name of this host: the launcher's, or its own."""
    return environ.get("HOROVOD_HOSTNAME") or os.uname().nodename


def _parent_identity() -> str:
    """Name the job after the process that started all ranks: its pid and start time (ticks)."""
    parent = os.getppid()
    try:
        return f"parent-{parent}-{_start_time(parent)}"
    except OSError:
        return f"parent-{parent}"


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        # The second field is the command in parentheses, and may itself contain blanks and ")".
        return stat.read().rpartition(")")[2].split()[19]
