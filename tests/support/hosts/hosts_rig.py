"""Several hosts on one machine, for tests and by hand:

    python tests/support/hosts/hosts_rig.py --hosts 2 --mbit 100 --delay-ms 5 -- \
        hvdtune run -np 2 -H hostb:2 …

Each host is a network namespace with an address, a hostname and an sshd of its own; everything
else, files included, is shared. They are joined by a switch: a bridge in one more namespace, and
`tc` limits what a host sends. A delay and a loss need netem; in a kernel without it, a program of
our own carries the frames (link_relay.cc). The command runs on hosta; when it ends, everything is
removed. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from support.hosts import ssh_server

LETTERS = "abcdefghijklmnop"
NETWORK = "10.77.0"
NETWORK6 = "fd77:"
INTERFACE = "eth0"
START_SECONDS = 20.0


class RigError(RuntimeError):
    """The hosts cannot be built here; the text says why."""


class Link(NamedTuple):
    """What a host sends: `rate` bit/s, arriving `delay` s later, a share `loss` of it lost."""

    rate: float = 1e9
    delay: float = 0.0
    loss: float = 0.0


FAST = Link()


def why_not(link: Link = FAST) -> str:
    """Why there cannot be such hosts on this machine; "" if there can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for name in ("ip", "ss", "tc", "unshare", "nsenter", "mount"):
        if shutil.which(name) is None:
            return f"{name} is missing (Debian: apt install iproute2 util-linux)"
    reason = ssh_server.why_not()
    if reason:
        return reason
    name = f"hvdtune-{secrets.token_hex(4)}"
    try:
        _ip("netns", "add", name)
    except RigError as error:
        return f"network namespaces are not allowed here ({error})"
    try:
        _ip("-n", name, "link", "add", "probe", "type", "veth", "peer", "name", "other")
        if (link.delay or link.loss) and not _netem_works(name, "probe"):
            return _why_no_relay()
        _shape(name, "probe", link)
    except RigError as error:
        return f"this kernel cannot do it ({error})"
    finally:
        _ip("netns", "del", name)
    return ""


def _netem_works(space: str, interface: str) -> bool:
    try:
        _output("tc", "-n", space, "qdisc", "add", "dev", interface, "root", "netem")
        _output("tc", "-n", space, "qdisc", "del", "dev", interface, "root")
    except RigError:
        return False
    return True


def _why_no_relay() -> str:
    if shutil.which("c++") is None:
        return "the kernel has no netem, and there is no compiler for link_relay.cc"
    return "" if os.path.exists("/dev/net/tun") else "the kernel has neither netem nor /dev/net/tun"


class Rig:
    """Running hosts, named hosta, hostb, …; `client` is the ssh command that knows them.

    The names hosta6, hostb6, … stand for their IPv6 addresses alone, where the kernel has IPv6
    (`has_ipv6`).
    """

    def __init__(self, folder: Path, count: int, link: Link) -> None:
        self.folder = folder
        self.names = [f"host{letter}" for letter in LETTERS[:count]]
        self.has_ipv6 = os.path.exists("/proc/net/if_inet6")
        self._tag = f"hvdtune-{secrets.token_hex(4)}"
        self._spaces: list[str] = []
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._relay: subprocess.Popen[str] | None = None
        try:
            self._write_files()
            self._build(link)
        except BaseException:
            self.remove()
            raise

    @property
    def client(self) -> str:
        """For HVDTUNE_SSH_COMMAND."""
        return f"ssh -F {self.folder / 'ssh_config'}"

    def environment(self, cache: Path) -> dict[str, str]:
        """For a launcher on one of the hosts; what it remembers of them is kept in `cache`."""
        return {"HVDTUNE_SSH_COMMAND": self.client, "XDG_CACHE_HOME": str(cache)}

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a host."""
        server = self._servers[name].pid
        inside = ["nsenter", "--target", str(server), "--net", "--uts", "--mount"]
        # nsenter would go to the folder of the namespace's first process.
        return [*inside, f"--wd={os.getcwd()}", "--", *command]

    def cut(self, name: str, connected: bool = False) -> None:
        """Take a host from the network without a word to anybody, or put it back."""
        if self._relay is None:
            state = "up" if connected else "down"
            _ip("-n", self._space("switch"), "link", "set", name, state)
        else:
            self._tell_relay(f"{'join' if connected else 'cut'} {self.names.index(name)}")

    @contextlib.contextmanager
    def replaced(self, name: str) -> Iterator[None]:
        """Cut a host off, and have another one answer at its address, as new as after a start."""
        switch = self._space("switch")
        address = f"{self.address(name)}/24"
        self.cut(name)
        _ip("-n", switch, "addr", "add", address, "dev", "bridge")
        try:
            for other in self.names:
                if other != name:  # they ask anew who has the address
                    _ip("-n", self._space(other), "neigh", "flush", "all")
            yield
        finally:
            _ip("-n", switch, "addr", "del", address, "dev", "bridge")
            for other in self.names:
                _ip("-n", self._space(other), "neigh", "flush", "all")
            self.cut(name, connected=True)

    def pause(self, name: str, goes_on: bool = False) -> None:
        """Stop a host's sshd, as a host that is up but too busy to answer, or let it go on."""
        os.kill(self._servers[name].pid, signal.SIGCONT if goes_on else signal.SIGSTOP)

    def sent_bytes(self, name: str) -> int:
        """How much a host has sent over its interface."""
        path = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        shown = subprocess.run(self.on(name, ["cat", path]), capture_output=True, check=True)
        return int(shown.stdout)

    def address(self, name: str) -> str:
        """Of a host, in digits."""
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def shaping(self, name: str) -> str:
        """What tc says about a host's interface."""
        space = self._space(name)
        return _output("tc", "-n", space, "qdisc", "show", "dev", INTERFACE)

    def remove(self) -> None:
        """End every process on the hosts and remove them."""
        for server in self._servers.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
        for space in self._spaces:
            for pid in _output("ip", "netns", "pids", space).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", space)
        self._spaces.clear()

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _write_files(self) -> None:
        addresses = {name: f"{NETWORK}.{index}" for index, name in enumerate(self.names, 1)}
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        lines += [f"{NETWORK6}:{index} {name}6\n" for index, name in enumerate(self.names, 1)]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        ssh_server.make_keys(self.folder)
        (self.folder / "ssh_config").write_text(f"Host *\n{ssh_server.client_options(self.folder)}")
        (self.folder / "sshd_config").write_text(ssh_server.server_options(self.folder))

    def _build(self, link: Link) -> None:
        switch = self._space("switch")
        self._add_space(switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        for name in self.names:
            self._add_space(self._space(name))
        if (link.delay or link.loss) and not _netem_works(switch, "bridge"):
            self._start_relay(link)
        else:
            self._join_by_bridge(switch, link)
        for index, name in enumerate(self.names, 1):
            space = self._space(name)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"{NETWORK}.{index}/24", "dev", INTERFACE)
            if self.has_ipv6:
                address = f"{NETWORK6}:{index}/64"
                _ip("-n", space, "addr", "add", address, "dev", INTERFACE, "nodad")
            _ip("-n", space, "link", "set", INTERFACE, "up")
            self._start_server(name)

    def _join_by_bridge(self, switch: str, link: Link) -> None:
        _ip("-n", switch, "link", "set", "bridge", "up")
        for name in self.names:
            space = self._space(name)
            _ip(
                *("-n", switch, "link", "add", name, "type", "veth"),
                *("peer", "name", INTERFACE, "netns", space),
            )
            _ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            _shape(space, INTERFACE, link)

    def _start_relay(self, link: Link) -> None:
        program = str(self.folder / "link_relay")
        source = str(Path(__file__).with_name("link_relay.cc"))
        _output("c++", "-std=c++20", "-O2", "-o", program, source)
        numbers = (f"{link.rate:.0f}", f"{link.delay * 1e9:.0f}", f"{link.loss:g}")
        self._relay = subprocess.Popen(
            [program, *numbers, *(self._space(name) for name in self.names)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._hear_relay("ready")

    def _tell_relay(self, command: str) -> None:
        assert self._relay is not None
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{command}\n")
        self._relay.stdin.flush()
        self._hear_relay("done")

    def _hear_relay(self, word: str) -> None:
        assert self._relay is not None
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != f"{word}\n":
            raise RigError("link_relay has ended")

    def _add_space(self, space: str) -> None:
        _ip("netns", "add", space)
        self._spaces.append(space)

    def _start_server(self, name: str) -> None:
        assert ssh_server.SSHD is not None
        hosts, ready = self.folder / "hosts", self.folder / f"ready-{name}"
        script = (
            f"hostname {name} && mount --bind {shlex.quote(str(hosts))} /etc/hosts && "
            f"touch {shlex.quote(str(ready))} && "
            f"exec {ssh_server.SSHD} -D -e -f {shlex.quote(str(self.folder / 'sshd_config'))}"
        )
        isolated = ["unshare", "--uts", "--mount", "sh", "-c", script]
        with open(self.folder / f"log-{name}", "wb") as log:
            server = subprocess.Popen(
                ["ip", "netns", "exec", self._space(name), *isolated],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._servers[name] = server
        deadline = time.monotonic() + START_SECONDS
        while not (ready.exists() and self._listens(name)):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RigError(f"{name} does not start: {Path(log.name).read_text()}")
            time.sleep(0.02)

    def _listens(self, name: str) -> bool:
        return ":22 " in _output("ip", "netns", "exec", self._space(name), "ss", "-Hltn")


def _shape(space: str, interface: str, link: Link) -> None:
    """Limit what an interface sends."""
    add = ("tc", "-n", space, "qdisc", "add", "dev", interface, "root")
    rate = f"{link.rate:.0f}bit"
    if link.delay or link.loss:
        limits = ["delay", f"{link.delay * 1e6:.0f}us", "loss", f"{link.loss * 100:g}%"]
        _output(*add, "netem", *limits, "rate", rate, "limit", "100000")
        return
    # A bucket for what a 4 ms tick of the kernel lets through; a queue of 20 ms.
    burst = max(16_000, round(link.rate / 8 * 0.004))
    _output(*add, "tbf", "rate", rate, "burst", str(burst), "latency", "20ms")


def _ip(*words: str) -> None:
    _output("ip", *words)


def _output(*words: str) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split()) or f"status {ended.returncode}"
        raise RigError(f"{' '.join(words)}: {said}")
    return ended.stdout


@contextlib.contextmanager
def hosts_rig(count: int, link: Link = FAST) -> Iterator[Rig]:
    """Hosts for as long as the context lasts. Raises `RigError` where they cannot be built."""
    ssh_server.make_privilege_separation()
    with _interrupted_by_signals(), tempfile.TemporaryDirectory(prefix="hvdtune-hosts-") as folder:
        rig = Rig(Path(folder), count, link)
        try:
            yield rig
        finally:
            rig.remove()


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """What ends this process ends it as Ctrl-C does, so that the hosts are removed."""
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: object) -> None:
        # Once: a second one would end the removal (timeout sends two).
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {
        n: signal.signal(n, interrupt) for n in numbers if signal.getsignal(n) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Run a command on one of several hosts.")
    parser.add_argument("--hosts", type=int, default=2, choices=range(1, len(LETTERS) + 1))
    parser.add_argument("--mbit", type=float, default=1000.0, help="what each host can send (1000)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way, between two hosts")
    parser.add_argument("--loss", type=float, default=0.0, help="share of frames, such as 0.01")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    link = Link(args.mbit * 1e6, args.delay_ms / 1e3, args.loss)
    reason = why_not(link)
    if reason:
        print(f"hosts_rig: {reason}", file=sys.stderr)
        return 2
    with hosts_rig(args.hosts, link) as rig:
        environment = {**os.environ, "HVDTUNE_SSH_COMMAND": rig.client}
        command = subprocess.Popen(rig.on(rig.names[0], args.command), env=environment)
        try:
            return command.wait()
        finally:
            command.kill()
            command.wait()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
