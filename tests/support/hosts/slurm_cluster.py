"""Slurm on the hosts of a rig: a controller on the first, a daemon on each, munge's key for all.

Everything lies in the rig's folder; nothing of an installed Slurm's own configuration is used, and
nothing is left. Slurm and munge are Debian's (slurm-wlm).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from support.hosts.hosts_rig import Rig, RigError

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
START_SECONDS = 30.0
CPUS = 2  # of a host, as Slurm is told
# What `srun --mpi=pmix` needs, where it is Debian's.
PMIX = Path(f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/pmix2/lib")

_CONFIGURATION = """\
ClusterName=rig
SlurmctldHost={first}({address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
"""


def why_not() -> str:
    """Why there cannot be a Slurm; "" if there can."""
    for name in ("srun", "sbatch", "slurmctld", "slurmd", "munged"):
        if shutil.which(name, path=PATH) is None:
            return f"{name} is missing (Debian: apt install slurm-wlm)"
    return ""


class Slurm:
    """A running cluster. `environment` is what its commands need."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.folder = rig.folder / "slurm"
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._write_files()
        try:
            first = rig.names[0]
            files = {name: self.folder / f"munge.{name}" for name in ("key", "socket", "pid")}
            self._start(
                first, "munged", "--foreground", "--force", f"--key-file={files['key']}",
                f"--socket={files['socket']}", f"--pid-file={files['pid']}",
                f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed",
            )  # fmt: skip
            self._wait_until("munged listens", files["socket"].exists)
            configuration = self.environment["SLURM_CONF"]
            self._start(first, "slurmctld", "-D", "-f", configuration)
            for name in rig.names:
                self._start(name, "slurmd", "-D", "-N", name, "-f", configuration)
            self._wait_until("all nodes are idle", self._all_idle)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the daemons, jobs first."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if (self.folder / "pmix").exists():
            for name in self.rig.names:
                subprocess.run(self.rig.on(name, ["umount", str(PMIX)]), check=False)

    def _write_files(self) -> None:
        folder, rig = self.folder, self.rig
        folder.mkdir()
        (folder / "state").mkdir()
        if PMIX.exists():  # Slurm's plugin looks there for a name that only libpmix-dev has
            copy = shutil.copytree(PMIX, folder / "pmix", symlinks=True)
            if not (copy / "libpmix.so").exists():
                (copy / "libpmix.so").symlink_to("libpmix.so.2")
            for name in rig.names:
                subprocess.run(rig.on(name, ["mount", "--bind", str(copy), str(PMIX)]), check=True)
        text = _CONFIGURATION.format(
            first=rig.names[0], address=rig.address(rig.names[0]), folder=folder
        )
        for name in rig.names:
            (folder / f"spool-{name}").mkdir()
            text += f"NodeName={name} NodeAddr={rig.address(name)} CPUs={CPUS} State=UNKNOWN\n"
        text += f"PartitionName=all Nodes={','.join(rig.names)} Default=YES State=UP\n"
        (folder / "slurm.conf").write_text(text)
        # slurmd looks for control groups, which namespaces of the rig do not have.
        (folder / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/cgroup\nCgroupAutomount=no\n"
        )
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))

    def _start(self, host: str, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=PATH)
        assert program is not None
        with open(self.folder / f"{name}-{host}.log", "wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    self.rig.on(host, [program, *arguments]),
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _all_idle(self) -> bool:
        states = self._ask(["sinfo", "--noheader", "--Node", "--format=%t"])
        return states.split() == ["idle"] * len(self.rig.names)

    def _ask(self, command: Sequence[str]) -> str:
        done = subprocess.run(
            self.rig.on(self.rig.names[0], command),
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def _wait_until(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(
                    f"{path.name}: {path.read_text(errors='replace')[-800:]}"
                    for path in sorted(self.folder.glob("*-*.log"))
                )
                raise RigError(f"Slurm does not come so far that {what}\n{logs}")
            time.sleep(0.05)


@contextlib.contextmanager
def slurm_cluster(rig: Rig) -> Iterator[Slurm]:
    """Slurm on the rig's hosts for as long as the context lasts. Raises `RigError`."""
    cluster = Slurm(rig)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)
