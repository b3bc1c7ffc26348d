"""LSF: the hosts of the job we are in, and the jsrun command for `--jsrun`.

Composed after Horovod's; no LSF was at hand to try it with.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.hosts import Host, Slot, require_name
from hvdtune.launch.ssh import Ssh

ALLOCATION_QUERY = "/opt/ibm/csm/bin/csm_allocation_query"
NODE_QUERY = "/opt/ibm/csm/bin/csm_node_attributes_query"
_QUERY_SECONDS = 30.0


class Node(NamedTuple):
    """What every compute node of the job has; `cpus` are hardware threads that jobs may use."""

    cpus: int
    gpus: int


def inside(environ: Mapping[str, str]) -> bool:
    """Whether LSF has started us."""
    return bool(environ.get("LSB_JOBID"))


def allocation(environ: Mapping[str, str]) -> list[Host] | None:
    """The hosts of this LSF job with their slots, or None outside of one.

    Where there is IBM's CSM: its compute nodes, with a slot for every GPU; otherwise LSF's own list
    of hosts. Raises `LaunchError` when neither can be had.
    """
    if not inside(environ):
        return None
    if environ.get("CSM_ALLOCATION_ID"):
        nodes, hardware = _csm(environ)
        return [Host(name, hardware["gpus"]) for name in nodes]
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    names, counts = words[::2], words[1::2]
    if not names or len(names) != len(counts) or not all(count.isdigit() for count in counts):
        raise LaunchError(
            f"LSB_MCPU_HOSTS={environ.get('LSB_MCPU_HOSTS', '')!r} is no list of LSF's hosts: give "
            "the hosts with -H and their number with -np."
        )
    return [Host(name, int(count)) for name, count in zip(names, counts, strict=True)]


def node_of(environ: Mapping[str, str], ssh: Ssh) -> Node:
    """The hardware of the first compute node, which stands for all.

    Raises `LaunchError` without CSM: then nobody says what the nodes have.
    """
    if not environ.get("CSM_ALLOCATION_ID"):
        raise LaunchError(
            "--jsrun: without CSM_ALLOCATION_ID the nodes' CPUs and GPUs are not known: say where "
            "the processes go with --binding-args."
        )
    nodes, hardware = _csm(environ)
    require_name(nodes[0], ALLOCATION_QUERY)
    command = ssh.reach(nodes[0], "LC_ALL=C lscpu")
    threads = _number(_records(_query(command)), "Thread(s) per core", "lscpu")
    if hardware["gpus"] < 1 or hardware["cores"] * threads < hardware["gpus"]:
        raise LaunchError(
            f"--jsrun: {nodes[0]} has {hardware['gpus']} GPUs and {hardware['cores']} cores: say "
            "where the processes go with --binding-args."
        )
    return Node(hardware["cores"] * threads, hardware["gpus"])


def _csm(environ: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    number = environ["CSM_ALLOCATION_ID"].strip()
    found = _records(_query([ALLOCATION_QUERY, "-a", number]))
    nodes = found.get("compute_nodes")
    if not isinstance(nodes, list) or not nodes:
        raise LaunchError(f"{ALLOCATION_QUERY} names no compute nodes of allocation {number}.")
    isolated = _number(found, "isolated_cores", ALLOCATION_QUERY)
    names = sorted(map(str, nodes))
    node = _records(_query([NODE_QUERY, "-n", names[0]])).get("Record_1")
    node = node if isinstance(node, dict) else {}
    cores, sockets, gpus = (
        _number(node, f"discovered_{name}", NODE_QUERY) for name in ("cores", "sockets", "gpus")
    )
    return names, {"cores": cores - sockets * isolated, "gpus": gpus}


def _query(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_QUERY_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]} does not answer: {error}.") from None
    if ended.returncode != 0:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        raise LaunchError(
            f"{command[0]} failed with exit code {ended.returncode}"
            f"{f' ({said[-1]})' if said else ''}."
        )
    return ended.stdout.decode("utf-8", "replace")


def _records(text: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    return found if isinstance(found, dict) else {}


def _number(record: Mapping[str, Any], key: str, source: str) -> int:
    try:
        return int(record[key])
    except (KeyError, TypeError, ValueError):
        raise LaunchError(f"{source} does not say {key}.") from None


# ---- jsrun ----


class JsrunJob(NamedTuple):
    """What jsrun is to start; `rankfile` is a path, the last fields are the flags' texts."""

    command: Sequence[str]
    rankfile: str | None = None
    tcp: bool = False
    output_file: str | None = None
    binding_args: str | None = None
    mpi_args: str | None = None


def require_jsrun(environ: Mapping[str, str]) -> None:
    """Raise `LaunchError` where jsrun cannot be used."""
    if not inside(environ):
        raise LaunchError("--jsrun works in a job of LSF's only, and LSB_JOBID is not set.")
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
