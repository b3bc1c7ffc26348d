"""WireGuard between the hosts of a rig, as docs/running/ssh.md sets it up: interface wg0.

What encrypts is a program, as on a machine whose kernel has no WireGuard.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.hosts.hosts_rig import Rig

INTERFACE = "wg0"
NETWORK = "10.78.0"
PORT = 51820
START_SECONDS = 20.0
# The program's socket is a file, and the rig's hosts share files.
SCRIPT = """
set -e
mkdir -p /var/run/wireguard
mount -t tmpfs none /var/run/wireguard
WG_PROCESS_FOREGROUND=1 wireguard-go {interface} >/dev/null 2>&1 &
until ip link show {interface} >/dev/null 2>&1; do sleep 0.05; done
wg set {interface} listen-port {port} private-key {key} {peers}
ip addr add {own}/24 dev {interface}
ip link set {interface} mtu 1420 up
wait
"""


def why_not() -> str:
    """Why there cannot be a tunnel here; "" if there can, where there can be a rig."""
    if shutil.which("wg") and shutil.which("wireguard-go"):
        return ""
    return "WireGuard is missing (Debian: apt install wireguard-go wireguard-tools)"


@contextlib.contextmanager
def tunnel(rig: Rig, folder: Path) -> Iterator[None]:
    """All hosts reach each other through it for as long as the context lasts; keys in `folder`."""
    public = {name: _make_key(folder / f"{name}.key") for name in rig.names}
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(rig.names, 1):
            peers = [
                f"peer {public[other]} allowed-ips {NETWORK}.{index}/32 "
                f"endpoint {rig.address(other)}:{PORT}"
                for index, other in enumerate(rig.names, 1)
                if other != name
            ]
            script = SCRIPT.format(
                interface=INTERFACE,
                port=PORT,
                key=folder / f"{name}.key",
                peers=" ".join(peers),
                own=f"{NETWORK}.{number}",
            )
            running = subprocess.Popen(rig.on(name, ["sh", "-c", script]), start_new_session=True)
            stack.callback(running.wait)
            stack.callback(subprocess.run, ["pkill", "-s", str(running.pid)], check=False)
        for name in rig.names:
            _wait_until_up(rig, name)
        yield


def _make_key(file: Path) -> str:
    """Write a private key; the public one."""
    file.touch(0o600)
    file.write_bytes(subprocess.check_output(["wg", "genkey"]))
    return subprocess.check_output(["wg", "pubkey"], input=file.read_bytes()).decode().strip()


def _wait_until_up(rig: Rig, name: str) -> None:
    shown = rig.on(name, ["ip", "-br", "link", "show", INTERFACE])
    deadline = time.monotonic() + START_SECONDS
    while b",UP" not in subprocess.run(shown, capture_output=True, check=False).stdout:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name}: {INTERFACE} is not up after {START_SECONDS} s")
        time.sleep(0.05)
