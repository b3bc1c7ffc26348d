"""Where the ranks of several hosts meet: the address of rank 0, and the key that admits to it.

`hvdtune run` tells its workers both. Under other launchers the user may give them; otherwise rank 0
generates them and tells the others (`hvdtune.core.meeting`). Nothing is contacted here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hvdtune.core.topology import Topology, slurm_step

ADDRESS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
INTERFACES = "HOROVOD_GLOO_IFACE"
SECRET = "HVDTUNE_SECRET"
ELASTIC = "HOROVOD_ELASTIC"
FAILED = "Horovod initialization failed: "
#: Ports where rank 0 may listen: below those that kernels give to outgoing connections.
FIRST_PORT, PORTS = 20000, 10000


class MeetingPlace(NamedTuple):
    """Rank 0 listens at `host` and `port`, for processes that know `secret`.

    `listens`: the addresses at which this rank itself listens. If it is empty, rank 0 listens only
    at `host`, and others at the address from which they have reached it.
    """

    host: str
    port: int
    secret: str
    listens: tuple[str, ...] = ()

    def of_generation(self, generation: int) -> MeetingPlace:
        """For the `generation`-th init of a job: each has a secret of its own."""
        return self._replace(secret=f"{self.secret}/{generation}")


def needs_place(environ: Mapping[str, str], topology: Topology) -> bool:
    """Whether a job's ranks meet over a network: they may be on several hosts."""
    # Our own launcher gives no address if all hosts' names are this machine's.
    own = topology.launcher == "hvdtune" and bool(environ.get("HVDTUNE_JOB_ID"))
    # In an elastic job the local size also counts slots without a process, so it is no evidence.
    if topology.local_size == topology.size and not (own and environ.get(ELASTIC) == "1"):
        return False
    return not own or given(environ) is not None


def told_place(
    environ: Mapping[str, str], topology: Topology, secret: str | None
) -> MeetingPlace | None:
    """The meeting place, if user and launcher have given all of it; None if anything is missing.

    Raises ValueError, in one sentence, for a malformed address.
    """
    found = given(environ)
    if found is None and not interface_names(environ.get(INTERFACES, "")):
        return launchers_place(environ, topology, secret)
    return MeetingPlace(*found, secret) if secret and found else None


def launchers_place(
    environ: Mapping[str, str], topology: Topology, secret: str | None
) -> MeetingPlace | None:
    """The meeting place at the address that the launcher gives; None without address or secret.

    If the user names interfaces, that address may belong to another one, where rank 0 does not
    listen: `told_place` then leaves it out.
    """
    found = _of_launcher(environ, topology)
    return MeetingPlace(*found, secret) if secret and found else None


def absence(
    environ: Mapping[str, str], topology: Topology, secret: str | None, reasons: str
) -> ValueError:
    """Why there is no meeting place, and what to set."""
    address = given(environ) or _of_launcher(environ, topology)
    missing = [
        *(
            []
            if address
            else [f"{ADDRESS} to the address of its host, {PORT} to a free port there"]
        ),
        *([] if secret else [f"{SECRET} to the same random text"]),
    ]
    return ValueError(
        f"{FAILED}the job has {topology.size} processes, {topology.local_size} of them on "
        f"{topology.hostname}, and {_launcher_name(environ, topology)} gives them no way to learn "
        f"where rank 0 is ({reasons}): set {' and '.join(missing)}, for all processes"
    )


def interface_names(text: str) -> list[str]:
    """The network interfaces in a text such as HOROVOD_GLOO_IFACE=ib0,eth0, each once, in order."""
    names = (name.strip() for name in text.split(","))
    return list(dict.fromkeys(name for name in names if name))


def given(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """The address and port that the environment names; None if it does not.

    Raises ValueError if only one of the two is set, or the port is not a port number.
    """
    host, port = environ.get(ADDRESS, "").strip(), environ.get(PORT, "").strip()
    if not host and not port:
        return None
    if not host or not port:
        present, absent = (ADDRESS, PORT) if host else (PORT, ADDRESS)
        raise ValueError(f"{FAILED}{present} is set but {absent} is not: set both or neither")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{FAILED}{PORT}={port!r} is no port; give one from 1 to 65535")
    return host, int(port)


def _of_launcher(environ: Mapping[str, str], topology: Topology) -> tuple[str, int] | None:
    """The address from torchrun, or a launcher with its variables, or from Azure or Slurm."""
    master = environ.get("MASTER_ADDR", "").strip()
    if master:
        # At MASTER_PORT torchrun itself listens.
        return master, port_of(f"{master}/{environ.get('MASTER_PORT', '')}/{topology.job_id}")
    azure, _, _ = environ.get("AZ_BATCH_MASTER_NODE", "").partition(":")
    if topology.launcher == "openmpi" and azure:
        return azure, port_of(topology.job_id)
    node = first_of_slurm(environ)
    if topology.launcher in ("slurm", "pmi") and node:
        return node, port_of(topology.job_id)
    return None


def first_of_slurm(environ: Mapping[str, str]) -> str:
    """The first node of the step that srun has started; "" without srun."""
    return first_node(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or "")


def first_node(nodes: str) -> str:
    """The first node of Slurm's list: "gpu[07-09,12],cpu1" begins with "gpu07"."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodes.strip())
    return "".join(part or "" for part in match.groups()) if match else nodes


def port_of(text: str) -> int:
    """A port computed from a text: the same for every process with the same text."""
    import hashlib

    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    return FIRST_PORT + number % PORTS


def _launcher_name(environ: Mapping[str, str], topology: Topology) -> str:
    names = {
        "openmpi": "mpirun", "pmi": "srun" if slurm_step(environ) else "mpirun", "jsm": "jsrun",
        "torchrun": "torchrun", "slurm": "srun", "mpi4py": "MPI",
    }  # fmt: skip
    return names.get(topology.launcher, "its launcher")
