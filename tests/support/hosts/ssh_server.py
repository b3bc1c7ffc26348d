"""An sshd of the tests' own on the loopback interface: its keys, its port, its clients' config."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from hvdtune.launch.local.processes import descendants

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
# sshd insists on this empty directory; Debian makes it when the machine starts its own.
PRIVILEGE_SEPARATION = Path("/run/sshd")
SHADOW = Path("/etc/shadow")
START_SECONDS = 20.0


def why_not() -> str:
    """Why there cannot be an sshd here; "" if there can."""
    if SSHD is None:
        return "sshd is missing (Debian: apt install openssh-server)"
    if not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "ssh is missing (Debian: apt install openssh-client)"
    if os.getuid() != 0 and not PRIVILEGE_SEPARATION.is_dir():
        return f"sshd needs {PRIVILEGE_SEPARATION}, which only root can make"
    if _is_locked(getpass.getuser()):
        return f"sshd lets nobody in as {getpass.getuser()}, whose password is locked (passwd -u)"
    return ""


def _is_locked(user: str) -> bool:
    """Whether an account is one that sshd turns away, whatever the key."""
    with contextlib.suppress(OSError):  # only root can read it
        for line in SHADOW.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == user:
                return rest.startswith("!")
    return False


class SshServer:
    """A running sshd; `client` is the ssh command that knows its hosts.

    The names nodea, nodeb and nodec lead to it; `stranger` does, too, but with a key that it does
    not take; `nobody` leads to a port where nobody listens.
    """

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.address = address
        self.port = _free_port(address)
        make_keys(folder)
        self._write_client_config()
        self.process = self._start()

    @property
    def client(self) -> str:
        """For HVDTUNE_SSH_COMMAND."""
        return f"ssh -F {self.folder / 'ssh_config'}"

    def sessions(self) -> int:
        """How many connections it serves now."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return len(children.read_text().split())

    def logins(self) -> int:
        """How often somebody has logged in."""
        return self.log().count("Accepted publickey for")

    def log(self) -> str:
        """What it has written."""
        return (self.folder / "log").read_text(errors="replace")

    def stop(self) -> None:
        """End it and all its sessions, which have process groups of their own."""
        sessions = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start(self) -> subprocess.Popen[bytes]:
        assert SSHD is not None
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress {self.address}:{self.port}\n{server_options(self.folder)}"
        )
        with open(self.folder / "log", "wb") as log:
            process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((self.address, self.port), 1.0).close()
                return process
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"sshd does not run: {self.log()}")
            time.sleep(0.02)

    def _write_client_config(self) -> None:
        here = f"  HostName {self.address}\n  Port {self.port}\n"
        (self.folder / "ssh_config").write_text(
            f"Host nodea nodeb nodec\n{here}{client_options(self.folder)}"
            f"Host stranger\n{here}{client_options(self.folder, 'wrong_key')}"
            f"Host nobody\n  Port {_free_port(self.address)}\n  HostName {self.address}\n"
        )


@contextlib.contextmanager
def ssh_server(folder: Path, address: str = "127.0.0.1") -> Iterator[SshServer]:
    """A server for as long as the context lasts."""
    make_privilege_separation()
    server = SshServer(folder, address)
    try:
        yield server
    finally:
        server.stop()


def make_privilege_separation() -> None:
    """Make the directory that sshd needs. It stays: another sshd may have begun to use it."""
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)


def make_keys(folder: Path) -> None:
    """A host's key, a client's key that is authorized, and one that is not."""
    for name in ("host_key", "key", "wrong_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    (folder / "authorized_keys").write_text((folder / "key.pub").read_text())


def server_options(folder: Path) -> str:
    """Lines for sshd_config."""
    return (
        f"HostKey {folder / 'host_key'}\nAuthorizedKeysFile {folder / 'authorized_keys'}\n"
        "PidFile none\nStrictModes no\nUsePAM no\nLogLevel VERBOSE\nUseDNS no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        # Ranks of all hosts share the CPUs of one machine.
        "SetEnv OMP_NUM_THREADS=1\n"
    )


def client_options(folder: Path, key: str = "key") -> str:
    """Lines for a host in ssh_config."""
    return (
        f"  IdentityFile {folder / key}\n  User {getpass.getuser()}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder / 'known_hosts'}\n  LogLevel ERROR\n"
    )


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
