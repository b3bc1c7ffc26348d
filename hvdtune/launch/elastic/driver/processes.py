"""The processes of `hvdtune run`'s elastic jobs: started here, and by an agent on each other host.

A host is checked before it gets its first process, and again after it has lost its last: is it
this machine, does the health check succeed, and which hvdtune is there?
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from hvdtune.bootstrap import python_command
from hvdtune.launch.allocation.hosts import is_local
from hvdtune.launch.elastic.actions import Start
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.driver.errands import Done, Errands, Outcome
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local.relay import open_files
from hvdtune.launch.local.spawn import StartError
from hvdtune.launch.remote import identity, rendezvous
from hvdtune.launch.remote.checks import require_alike
from hvdtune.launch.remote.interfaces import Interfaces
from hvdtune.launch.worker import Worker
from hvdtune.launch.workers import Workers

if TYPE_CHECKING:
    from hvdtune.launch.remote.connection import Connection
    from hvdtune.launch.remote.ssh import Ssh

# Between SIGTERM and SIGKILL.
GRACE_SECONDS = 1.0
# A host that does not report the end of a killed process within this time is out of reach.
_UNREACHABLE_SECONDS = 2.0
_LOOKUP_SECONDS = 10.0


class Program(NamedTuple):
    """The program of each process, and where its output goes; see `job.ElasticSpec`."""

    command: Sequence[str]
    environment: Mapping[str, str]
    output_directory: str | None
    output_setting: str
    digits: int  # of a start rank
    descriptors: Sequence[int]
    verbose: bool


class Reach(NamedTuple):
    """How other hosts are reached."""

    ssh: Ssh
    interfaces: Interfaces
    health_check: str | None
    seconds: float  # for a health check


class _Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[Start] = []
        self.is_here: bool | None = None
        self.address = ""  # ours, as that host would reach it
        self.is_healthy = False
        self.is_looked_at = False  # an errand is running for it
        self.connection: Connection | None = None
        self.facts: dict[str, Any] | None = None


class Processes:
    """A `Starter`, which `Workers` tells about the processes."""

    def __init__(
        self,
        program: Program,
        reach: Reach,
        errands: Errands,
        driver: Driver,
        say: Callable[[str], None],
        ended: Callable[[Worker], None],
    ) -> None:
        self.workers: Workers  # set by the code that made them with this object
        self.open_files: tuple[int, int] | None = None
        self._program = program
        self._reach = reach
        self._errands = errands
        self._driver = driver
        self._say = say
        self._ended = ended
        self._own = identity.facts()
        self._fault = _fault(reach.interfaces, self._own)
        self._hosts: dict[str, _Host] = {}
        self._numbers: dict[str, int] = {}  # of workers, by identity
        self._identities: dict[int, str] = {}
        self._count = 0
        # When the next step is due, and whether SIGKILL has been sent, by number of the worker.
        self._dying: dict[int, tuple[float, bool]] = {}

    # ---- the driver's requests -------------------------------------------------------------------

    def start(self, order: Start) -> None:
        """Start a process as soon as its host is known to be fit for it."""
        host = self._hosts.setdefault(order.host, _Host(order.host))
        host.waiting.append(order)
        self._go_on(host)

    def kill(self, identity: str, at_once: bool) -> None:
        """End a process, with SIGTERM first unless it does not answer."""
        number = self._numbers.get(identity)
        if number is None:
            for host in self._hosts.values():
                host.waiting = [order for order in host.waiting if order.identity != identity]
            self._driver.exited(identity, -signal.SIGKILL)
            return
        self._dying[number] = time.monotonic() + GRACE_SECONDS, at_once
        self.workers.all[number].signal(signal.SIGKILL if at_once else signal.SIGTERM, group=True)

    def meeting(self, hosts: Sequence[str]) -> Mapping[str, str]:
        """The variables with which ranks on these hosts meet, if they are several machines."""
        found = {name: facts for name in hosts if (facts := self._hosts[name].facts)}
        machines = {found.get(name, self._own)["machine"] for name in hosts}
        if len(machines) == 1:
            return {}
        return rendezvous.over_ssh(hosts, self._own, found, self._reach.interfaces)

    def next_due(self) -> float | None:
        """When to call `advance`."""
        return min((due for due, _ in self._dying.values()), default=None)

    def advance(self, now: float) -> None:
        """Kill processes that SIGTERM has not ended; give up hosts that do not answer."""
        for number, (due, was_killed) in [*self._dying.items()]:
            worker = self.workers.all[number]
            if now < due:
                continue
            self._dying[number] = now + _UNREACHABLE_SECONDS, True
            if was_killed and worker.connection is not None:
                worker.connection.end()
            else:
                worker.signal(signal.SIGKILL, group=True)

    # ---- hosts -----------------------------------------------------------------------------------

    def _go_on(self, host: _Host) -> None:
        """Take the next step towards the processes that a host will get."""
        if not host.waiting or host.is_looked_at:
            return
        if host.connection is not None and host.connection.closed:
            # The ends of its workers are being reported; `lost` follows.
            host.connection = host.facts = None
        if host.is_here is None:
            self._locate(host)
        elif not host.is_here and self._program.descriptors:
            why = "its workers need open files of this machine, and it seems to be another one"
            self._refuse(host, why)
        elif self._fault and self._runs_elsewhere(host):
            self._refuse(host, f"{self._fault}; it cannot share a job with other hosts")
        elif not host.is_here and not _folder():
            self._refuse(host, "the folder that the launcher was started in is gone")
        elif self._reach.health_check and not host.is_healthy:
            self._check_health(host)
        elif host.is_here:
            for order in self._taken(host):
                self._start_here(order)
        elif host.connection is None:
            self._connect(host)
        elif host.facts is not None:
            self._start_there(host, host.connection)

    def _runs_elsewhere(self, host: _Host) -> bool:
        """Whether the job has processes on this machine if `host` is another, or the reverse."""
        hosts = (self._hosts[worker.slot.hostname] for worker in self.workers.running())
        return any(other.is_here != host.is_here for other in hosts)

    def _taken(self, host: _Host) -> Iterator[Start]:
        """One order after another, as the outcome of the first may revoke others."""
        while host.waiting:
            yield host.waiting.pop(0)

    def _refuse(self, host: _Host, why: str) -> None:
        """The host gets none of the processes that are planned for it now."""
        # What the driver orders in their place is a new attempt, and may fail for another reason.
        orders, host.waiting = host.waiting, []
        for order in orders:
            self._driver.not_started(order.identity, why)

    def _look(
        self, host: _Host, name: str, command: Sequence[str], seconds: float, done: Done
    ) -> None:
        host.is_looked_at = True
        self._errands.run(
            name, command, seconds, done, {**os.environ, "HOROVOD_HOSTNAME": host.name}
        )

    def _locate(self, host: _Host) -> None:
        """Find out whether a host is this machine, without waiting for the resolver."""
        if host.name in ("localhost", os.uname().nodename) or _is_address(host.name):
            host.is_here = is_local(host.name)
            host.address = "" if host.is_here else rendezvous.own_address_towards(host.name)
            self._go_on(host)
            return
        command = python_command("hvdtune.launch.elastic.driver.lookup", host.name)
        self._look(
            host, f"host {host.name}", command, _LOOKUP_SECONDS, partial(self._take_place, host)
        )

    def _take_place(self, host: _Host, outcome: Outcome) -> None:
        """A look-up has ended; if the host was not found, ssh will report why."""
        host.is_looked_at = False
        address: str | None = self._own["hostname"]
        with contextlib.suppress(ValueError, KeyError):
            address = json.loads(outcome.output)[host.name]
        host.is_here, host.address = address is None, address or ""
        self._go_on(host)

    def _check_health(self, host: _Host) -> None:
        text = self._reach.health_check or ""
        command: Sequence[str] = ["/bin/sh", "-c", text]
        if not host.is_here:
            name = shlex.quote(host.name)
            # Where the processes run: in the home directory if there is no such folder.
            there = f"cd {shlex.quote(_folder())} 2>/dev/null; "
            there += f"HOROVOD_HOSTNAME={name} sh -c {shlex.quote(text)}"
            try:
                command = self._reach.ssh.reach(host.name, there)
            except LaunchError as error:
                self._refuse(host, str(error).rstrip("."))
                return
        self._look(
            host, f"health check of {host.name}", command, self._reach.seconds,
            partial(self._take_health, host),
        )  # fmt: skip

    def _take_health(self, host: _Host, outcome: Outcome) -> None:
        host.is_looked_at = False
        host.is_healthy = not outcome.failure
        if host.is_healthy:
            self._go_on(host)
        else:
            self._refuse(host, f"its health check {outcome.failure}")

    # ---- here ------------------------------------------------------------------------------------

    def _number(self, order: Start) -> int:
        self.workers.prune()
        self._count += 1
        self._numbers[order.identity], self._identities[self._count] = self._count, order.identity
        return self._count

    def _files(self, order: Start) -> Sequence[BinaryIO | None]:
        if self._program.output_directory is None:
            return [None, None]
        name = f"rank.{order.start_rank:0{self._program.digits}d}"
        return open_files(self._program.output_directory, name, self._program.output_setting)

    def _start_here(self, order: Start) -> None:
        number = self._number(order)
        try:
            self.workers.start(
                number,
                order.planned._replace(rank=order.start_rank),
                self._program.command,
                {**self._program.environment, **self._driver.variables(order)},
                self._files(order),
                self._program.descriptors,
                self.open_files,
            )
        except (StartError, LaunchError, OSError) as error:
            worker = self.workers.all.pop(number, None)
            if worker is not None and worker.process is not None:
                worker.process.kill()  # it runs, but its output and end would not be noticed
            self._forget(number)
            why = str(error).removesuffix(" The job has been ended.").rstrip(".")
            self._driver.not_started(order.identity, why)

    # ---- elsewhere -------------------------------------------------------------------------------

    def _connect(self, host: _Host) -> None:
        try:
            host.connection = self.workers.connect(
                host.name, self._reach.ssh.command(host.name, "serve")
            )
        except (StartError, LaunchError) as error:
            self._refuse(host, str(error).rstrip("."))

    def introduced(self, connection: Connection, facts: bytes) -> None:
        """An agent has described its host."""
        host = self._hosts[connection.hostname]
        try:
            found = json.loads(facts)
            self._check_facts(host, found)
            host.facts = found
        except (TypeError, KeyError, AttributeError):
            raise ValueError("its facts are malformed") from None
        except LaunchError as error:
            host.connection = None
            connection.end()
            self._refuse(host, str(error).rstrip("."))
        else:
            self._go_on(host)

    def _check_facts(self, host: _Host, facts: dict[str, Any]) -> None:
        """Raise `LaunchError` if the host is unfit for the job."""
        require_alike({host.name: facts}, self._own["version"], self._reach.interfaces)
        if not _is_own(facts.get("ssh_from", "")):
            facts["ssh_from"] = host.address
        if self._reach.interfaces.names:
            self._reach.interfaces.address(facts["addresses"], f"host {host.name}")

    def _start_there(self, host: _Host, connection: Connection) -> None:
        assert host.facts is not None
        own = self._own["addresses"]
        chosen = next((own[name] for name in self._reach.interfaces.names if own.get(name)), "")
        places = {}
        for order in self._taken(host):
            number = self._number(order)
            try:
                address = chosen or host.facts["ssh_from"]
                places[number] = self._driver.variables(order, address, chosen)
                slot = order.planned._replace(rank=order.start_rank)
                self.workers.expect(number, slot, connection, self._files(order))
            except (LaunchError, OSError) as error:
                places.pop(number, None)
                self._forget(number)
                self._driver.not_started(order.identity, str(error).rstrip("."))
        if places:
            connection.start(self._program.command, self._program.environment, places)

    def lost(self, connection: Connection) -> None:
        """A host's connection has ended; the ends of its workers have been reported already."""
        host = self._hosts[connection.hostname]
        if host.connection is not connection:
            return  # what waits now is for the next connection
        host.connection = host.facts = None
        self._refuse(host, connection.last_complaint or "ssh has ended without a message")

    # ---- starts and ends of processes ------------------------------------------------------------

    def started(self, worker: Worker) -> None:
        """A process runs."""
        if self._program.verbose:
            words = f"started rank {worker.slot.rank} on {worker.slot.hostname} as pid {worker.pid}"
            self._say(f"{words}: {shlex.join(self._program.command)}")

    def not_started(self, worker: Worker, error: StartError) -> None:
        """An agent could not start it."""
        worker.code = error.status
        process = self._forget(worker.number)
        if process is not None:
            self._driver.not_started(process, str(error).rstrip("."))

    def ended(self, worker: Worker) -> None:
        """A process has ended; kill the processes that it has left running."""
        if self._program.verbose:
            words = worker.loss or f"ended with exit code {worker.code}"
            self._say(f"rank {worker.slot.rank} {words}")
        if worker.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
        self.workers.flush(worker)
        if worker.number not in self._dying:  # the driver has killed it for another reason
            self._ended(worker)
        process = self._forget(worker.number)
        if process is not None:
            assert worker.code is not None
            self._driver.exited(process, worker.code)

    def _forget(self, number: int) -> str | None:
        self._dying.pop(number, None)
        identity = self._identities.pop(number, None)
        if identity is None:
            return None
        del self._numbers[identity]
        worker = self.workers.all.get(number)
        if worker is not None:
            host = self._hosts[worker.slot.hostname]
            others = (w for w in self.workers.running() if w.slot.hostname == host.name)
            host.is_healthy = host.is_healthy and any(others)
        return identity


def _fault(interfaces: Interfaces, own: Mapping[str, Any]) -> str:
    """Why this host, with these facts, cannot be in a job with others; "" if it can."""
    host = "the launcher's host"
    try:
        interfaces.require(own["interfaces"], host)
        if interfaces.names:
            interfaces.address(own["addresses"], host)
    except LaunchError as error:
        return str(error).rstrip(".")
    return ""


def _folder() -> str:
    """The folder in which processes start; "" if it is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(address: str) -> bool:
    """Whether others can reach this machine at the address: it is not a gateway's."""
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(address).is_loopback and is_local(address)
    return False
