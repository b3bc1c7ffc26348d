"""The peers: where each comes from, and how its ranks are started on this machine.

Each is started as its documentation says for one host. If there are more ranks than CPUs, it gets
its settings for that case if they make it faster; `settings` and the report name them:

  Open MPI   `mpi_yield_when_idle` with more ranks than CPUs (otherwise spinning is faster)
  MPICH      `CH4_PROGRESS_THROTTLE` with more ranks than CPUs, which sleeps after a poll that
             found nothing: without it, 8 ranks on 2 cores take seconds for a call that takes 30 us
             with it; higher counts of polls are slower
  Intel MPI  `I_MPI_WAIT_MODE=1` with more ranks than CPUs (a little faster from 16 MiB, as fast
             below; slower for small arrays if every rank has a CPU). `I_MPI_THREAD_YIELD=2`
             made no difference, 3 is slower. `intel-mpi-plain` measures it without these settings
  oneCCL     with more ranks than CPUs, `CCL_WORKER_OFFLOAD=1` and `CCL_YIELD=sched_yield`: 100
             times faster for small arrays, 15 times for large ones, than its defaults; either
             variable alone, `CCL_YIELD=sleep` and `CCL_ALLREDUCE=direct` are slower
  gloo       as torch.distributed starts it, one compute thread per rank
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peers import environments
from peers.environments import SOURCES, Unavailable


@dataclass(frozen=True)
class Start:
    """The start of a job: one command for all ranks, or (`per_rank`) one command for each."""

    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    per_rank: bool = False


class Peer(ABC):
    """One system; `prepare` before `start`."""

    key: str
    title: str

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Install and compile what is missing below `folder`; raises Unavailable."""

    @abstractmethod
    def version(self) -> str:
        """The version that was prepared."""

    def settings(self, ranks: int, cpus: int) -> str:
        """The differences from a plain start, for the report; empty if there are none."""
        return ""

    @abstractmethod
    def start(self, ranks: int, cpus: int) -> Start:
        """How to start `ranks` ranks on `cpus` usable CPUs."""


class HvdtunePeer(Peer):
    """The hvdtune that this interpreter imports, through `hvdtune.torch`."""

    key = "hvdtune"
    title = "hvdtune"

    def prepare(self, folder: Path) -> None:
        try:
            import torch  # noqa: F401
        except ImportError:
            raise Unavailable("hvdtune.torch needs PyTorch: pip install 'hvdtune[torch]'") from None

    def version(self) -> str:
        import hvdtune

        return hvdtune.__version__

    def start(self, ranks: int, cpus: int) -> Start:
        return hvdtune_job("hvdtune_rank.py", ranks)


def hvdtune_job(script: str, ranks: int) -> Start:
    """`hvdtune run` of a script of this folder."""
    # Not `python -m`, which would take a checkout in the current directory for the package.
    code = "import sys; sys.path[:] = filter(None, sys.path); "
    code += "from hvdtune.cli.main import main; sys.exit(main())"
    run = (sys.executable, "-c", code, "run", "-np", str(ranks))
    return Start((*run, sys.executable, str(SOURCES / script)))


class GlooPeer(Peer):
    """torch.distributed with gloo, from the PyTorch that hvdtune uses in this interpreter."""

    def __init__(self, key: str, title: str, step: str) -> None:
        self.key = key
        self.title = title
        self._step = step

    def prepare(self, folder: Path) -> None:
        try:
            import torch.distributed
        except ImportError:
            raise Unavailable("PyTorch is not installed") from None
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            raise Unavailable("this PyTorch was built without gloo")

    def version(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def settings(self, ranks: int, cpus: int) -> str:
        return f"gradients {self._step}"

    def start(self, ranks: int, cpus: int) -> Start:
        environ = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(ranks),
            "HVDTUNE_COMPARE_STEP": self._step,
        }
        command = (sys.executable, str(SOURCES / "gloo_rank.py"))
        return Start(command, environ, per_rank=True)


class MpiPeer(Peer):
    """An MPI from PyPI, or one that Debian has installed: mpi.c in its environment."""

    def __init__(
        self,
        key: str,
        title: str,
        requirements: Sequence[str],
        *,
        debian: str = "",
        run: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        crowded_run: Sequence[str] = (),
        crowded_environ: Mapping[str, str] | None = None,
        root: str = "",
    ) -> None:
        """`debian` is the suffix of Debian's commands; `crowded_*` apply with ranks > CPUs;
        `root` is the variable that must name the environment."""
        self.key = key
        self.title = title
        self._requirements = tuple(requirements)
        self._debian = debian
        self._run = (tuple(run), tuple(crowded_run))
        self._environ = (dict(environ or {}), dict(crowded_environ or {}))
        self._root = root
        self._launcher = ""
        self._program = Path()
        self._version = ""
        self._rooted: dict[str, str] = {}

    def prepare(self, folder: Path) -> None:
        environment = folder / "-".join(name.split("=")[0] for name in self._requirements)
        self._program = folder / "built" / self.key
        try:
            self._version = environments.install(environment, self._requirements)
            compiler = str(environment / "bin" / "mpicc")
            self._launcher = str(environment / "bin" / "mpiexec")
            self._rooted = {self._root: str(environment)} if self._root else {}
        except Unavailable as error:
            compiler, self._launcher = self._from_debian(str(error))
        environments.compile_mpi(compiler, self._program, {**os.environ, **self._rooted})

    def _from_debian(self, failure: str) -> tuple[str, str]:
        """(compiler, launcher) of the Debian package; notes the version. Raises Unavailable."""
        compiler = shutil.which(f"mpicc.{self._debian}") if self._debian else None
        launcher = shutil.which(f"mpiexec.{self._debian}") if self._debian else None
        if compiler is None or launcher is None:
            packages = _DEBIAN_PACKAGES.get(self._debian)
            hint = f" (or: apt-get install {packages})" if packages else ""
            raise Unavailable(f"{failure}{hint}")
        self._version = "of Debian"
        return compiler, launcher

    def version(self) -> str:
        return self._version

    def settings(self, ranks: int, cpus: int) -> str:
        crowded = ranks > cpus
        words = [*self._run[0], *(self._run[1] if crowded else ())]
        variables = {**self._environ[0], **(self._environ[1] if crowded else {})}
        return " ".join([*words, _assignments(variables)]).strip()

    def start(self, ranks: int, cpus: int) -> Start:
        crowded = ranks > cpus
        command = [self._launcher, *self._run[0], *(self._run[1] if crowded else ())]
        variables = {**self._environ[0], **(self._environ[1] if crowded else {})}
        return Start(
            (*command, "-n", str(ranks), str(self._program)), {**self._rooted, **variables}
        )


class OneCclPeer(Peer):
    """oneCCL from PyPI; no Python binding there, so oneccl.cpp in its environment."""

    key = "oneccl"
    title = "oneCCL"

    def prepare(self, folder: Path) -> None:
        self._environment = folder / "oneccl"
        self._program = folder / "built" / self.key
        self._version = environments.install(self._environment, ("oneccl", "oneccl-devel"))
        environments.compile_oneccl(self._environment, self._program)

    def version(self) -> str:
        return self._version

    def settings(self, ranks: int, cpus: int) -> str:
        return _assignments({**INTEL_ENVIRON, **self._crowded(ranks, cpus)})

    @staticmethod
    def _crowded(ranks: int, cpus: int) -> dict[str, str]:
        crowded = {"CCL_WORKER_OFFLOAD": "1", "CCL_YIELD": "sched_yield"}
        return crowded if ranks > cpus else {}

    def start(self, ranks: int, cpus: int) -> Start:
        library = str(self._environment / "lib")
        inherited = os.environ.get("LD_LIBRARY_PATH")
        environ = {
            "CCL_ROOT": str(self._environment),
            "I_MPI_ROOT": str(self._environment),
            "LD_LIBRARY_PATH": f"{library}:{inherited}" if inherited else library,
            "CCL_LOG_LEVEL": "error",
            **INTEL_ENVIRON,
            **self._crowded(ranks, cpus),
        }
        launcher = str(self._environment / "bin" / "mpiexec")
        return Start((launcher, "-n", str(ranks), str(self._program)), environ)


#: The Debian packages with the commands of an MPI with that suffix.
_DEBIAN_PACKAGES = {"openmpi": "libopenmpi-dev openmpi-bin", "mpich": "libmpich-dev mpich"}

#: For one host: without this, Intel MPI also opens the network, which fails on some machines.
INTEL_ENVIRON = {"I_MPI_FABRICS": "shm"}


def all_peers() -> dict[str, Peer]:
    """Every peer by key; those of `DEFAULT` first."""
    found: tuple[Peer, ...] = (
        HvdtunePeer(),
        MpiPeer(
            "open-mpi",
            "Open MPI",
            ("openmpi",),
            debian="openmpi",
            run=(*_as_root(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
            crowded_run=("--mca", "mpi_yield_when_idle", "1"),
        ),
        MpiPeer(
            "mpich",
            "MPICH",
            ("mpich",),
            debian="mpich",
            crowded_environ={
                "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
                "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
            },
        ),
        _intel_mpi("intel-mpi", "Intel MPI", {"I_MPI_WAIT_MODE": "1"}),
        OneCclPeer(),
        GlooPeer("gloo", "torch gloo", "in buckets of 25 MB"),
        GlooPeer("gloo-single", "gloo, single", "one by one"),
        _intel_mpi("intel-mpi-plain", "Intel, plain", {}),
    )
    return {peer.key: peer for peer in found}


def _intel_mpi(key: str, title: str, crowded: Mapping[str, str]) -> MpiPeer:
    return MpiPeer(
        key,
        title,
        ("impi-rt", "impi-devel"),
        environ=INTEL_ENVIRON,
        crowded_environ=crowded,
        root="I_MPI_ROOT",
    )


DEFAULT = "hvdtune,open-mpi,mpich,intel-mpi,oneccl,gloo"


def select(text: str) -> list[Peer]:
    """The peers named, hvdtune first (everything is a multiple of it); ValueError otherwise."""
    known = all_peers()
    keys = list(dict.fromkeys(["hvdtune", *(part.strip() for part in text.split(","))]))
    for key in keys:
        if key not in known:
            raise ValueError(f"unknown peer {key!r}; accepted: {', '.join(known)}")
    return [known[key] for key in keys]


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _as_root() -> tuple[str, ...]:
    return ("--allow-run-as-root",) if os.geteuid() == 0 else ()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
