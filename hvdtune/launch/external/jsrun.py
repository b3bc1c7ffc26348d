"""`--jsrun`: the jsrun command that starts a job under LSF, and where its ranks go.

Modelled on Horovod's code; it has not been tried with a real LSF.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hvdtune.launch.allocation import lsf
from hvdtune.launch.allocation.hosts import Host, Slot, require_name
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.remote.ssh import Ssh


class Node(NamedTuple):
    """The hardware of every compute node; `cpus` are hardware threads that jobs may use."""

    cpus: int
    gpus: int


def node_of(environ: Mapping[str, str], ssh: Ssh) -> Node:
    """The hardware of the first compute node, which stands for all.

    Raises `LaunchError` without CSM: the hardware is then unknown.
    """
    if not environ.get("CSM_ALLOCATION_ID"):
        raise LaunchError(
            "--jsrun: without CSM_ALLOCATION_ID the nodes' CPUs and GPUs are not known: say where "
            "the processes go with --binding-args."
        )
    nodes, hardware = lsf.nodes_of(environ)
    require_name(nodes[0], lsf.ALLOCATION_QUERY)
    command = ssh.reach(nodes[0], "LC_ALL=C lscpu")
    threads = lsf.number(lsf.records(lsf.query(command)), "Thread(s) per core", "lscpu")
    if hardware["gpus"] < 1 or hardware["cores"] * threads < hardware["gpus"]:
        raise LaunchError(
            f"--jsrun: {nodes[0]} has {hardware['gpus']} GPUs and {hardware['cores']} cores: say "
            "where the processes go with --binding-args."
        )
    return Node(hardware["cores"] * threads, hardware["gpus"])


class JsrunJob(NamedTuple):
    """The job for jsrun; `rankfile` is a path, the last fields are the flags' texts."""

    command: Sequence[str]
    rankfile: str | None = None
    tcp: bool = False
    output_file: str | None = None
    binding_args: str | None = None
    mpi_args: str | None = None


def require_jsrun(environ: Mapping[str, str]) -> None:
    """Raise `LaunchError` if jsrun cannot be used."""
    if not lsf.inside(environ):
        raise LaunchError("--jsrun works only inside an LSF job, and LSB_JOBID is not set.")
    if shutil.which("jsrun", path=environ.get("PATH")) is None:
        raise LaunchError("--jsrun: no jsrun was found on PATH: leave --jsrun out, or give --mpi.")


def compose(job: JsrunJob) -> list[str]:
    """The words of the jsrun command. Raises `LaunchError` for texts that cannot be split."""
    if job.binding_args:
        words = _split(job.binding_args, "--binding-args")
    else:
        assert job.rankfile is not None
        words = ["--erf_input", job.rankfile]
    if job.output_file:
        words += ["--stdio_stderr", job.output_file, "--stdio_stdout", job.output_file]
    arguments = [*(["-tcp"] if job.tcp else []), *([job.mpi_args] if job.mpi_args else [])]
    words += ["--smpiargs", " ".join(arguments)] if arguments else []
    return ["jsrun", *words, *job.command]


def _split(text: str, flag: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"{flag} is {text!r}, which cannot be split: {error}.") from None


def rankfile(slots: Sequence[Slot], hosts: Sequence[Host], node: Node) -> str:
    """An explicit resource file: every rank gets its share of its host's CPUs, one for each GPU.

    Raises `LaunchError` for a host with more slots than GPUs.
    """
    for host in hosts:
        if host.slots > node.gpus:
            raise LaunchError(
                f"--jsrun: host {host.name} has {host.slots} slots, more than its {node.gpus} GPUs."
            )
    share = node.cpus // node.gpus
    lines = ["overlapping_rs: allow", "cpu_index_using: logical"]
    for slot in slots:
        if slot.local_rank == 0:
            lines.append("")
        first = slot.local_rank * share
        lines.append(
            f"rank: {slot.rank}: {{ hostname: {slot.hostname}; "
            f"cpu: {{{first}-{first + share - 1}}} ; gpu: * ; mem: * }}"
        )
    return "\n".join(lines) + "\n"
