"""From the command line's request to a running job, or (`--dry-run`) to its commands.

There are three ways of starting: our own launcher, with ssh for other hosts; mpirun; LSF's jsrun.
Only our own launcher starts elastic jobs.
"""

from __future__ import annotations

import enum
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hvdtune.core.meeting.addresses import present_interfaces
from hvdtune.launch.allocation import capacity
from hvdtune.launch.allocation.hosts import Host, Slot, assign_ranks, is_local
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local import environment as environments
from hvdtune.launch.remote.interfaces import Interfaces, loopback_interfaces
from hvdtune.launch.remote.ssh import Ssh

if TYPE_CHECKING:
    from hvdtune.launch.elastic.limits import Limits
    from hvdtune.launch.elastic.options import Options

# Only for the job: neither on a command line nor on a screen.
SECRETS = ("HVDTUNE_SECRET", "HVDTUNE_JOB_ID")
_RANKFILE = "RANKFILE"  # in a dry run


class Method(enum.Enum):
    """The program that starts the processes."""

    OWN = "hvdtune"
    MPIRUN = "mpirun"
    JSRUN = "jsrun"


class Elastic(NamedTuple):
    """The request for an elastic job; `heartbeat` is that of `elastic.job.ElasticSpec`."""

    options: Options
    limits: Limits
    heartbeat: float


class Request(NamedTuple):
    """The request for a job.

    `environment` is what all workers share (see `job_environment`), `inherited` the part of it
    that existed before. With `use_cache`, facts about other hosts are valid for an hour. An
    `elastic` job with a script has no hosts. `output_setting`, `descriptors` and `explain` are as
    in `hvdtune.launch.job.JobSpec`; mpirun and jsrun know only the first. The other fields are the
    flags' values.
    """

    command: Sequence[str]
    hosts: Sequence[Host]
    processes: int
    environment: Mapping[str, str]
    inherited: Mapping[str, str]
    method: Method = Method.OWN
    interfaces: Interfaces = Interfaces()
    ssh: Ssh = Ssh()
    start_timeout: float = 30.0
    use_cache: bool = True
    tcp: bool = False
    timestamps: bool = False
    output_directory: str | None = None
    verbose: bool = False
    mpi_args: str | None = None
    binding_args: str | None = None
    elastic: Elastic | None = None
    output_setting: str = "--output-filename"
    descriptors: Sequence[int] = ()
    explain: Callable[[str], None] | None = None


def start(request: Request) -> int:
    """Run the job; return the launcher's exit status.

    Raises `LaunchError` before anything is started.
    """
    if request.elastic is not None:
        return _start_elastic(request, request.elastic)
    slots = _slots(request)
    if request.method is not Method.OWN:
        return _start_external(request, slots)
    from hvdtune.launch.job import JobSpec, run_job

    remote = _remote(slot.hostname for slot in slots)
    meeting = _check(request, slots, remote) if remote else {}
    if request.interfaces.by_flag and not meeting:
        _tell(f"{request.interfaces.setting} has no effect: the job runs on one host.")
    spec = JobSpec(
        command=request.command,
        slots=slots,
        environment={**environments.without_place(request.environment), **meeting},
        output_directory=request.output_directory,
        output_setting=request.output_setting,
        timestamps=request.timestamps,
        verbose=request.verbose,
        descriptors=request.descriptors,
        explain=request.explain,
        remote={name: request.ssh.command(name, "run") for name in remote},
        start_timeout=request.start_timeout,
    )
    return run_job(spec)


def _start_elastic(request: Request, elastic: Elastic) -> int:
    from hvdtune.launch.elastic.job import ElasticSpec, run_elastic_job

    if request.hosts:
        _slots(request)
    elif request.interfaces.by_flag:
        request.interfaces.require(present_interfaces())
    options = elastic.options
    spec = ElasticSpec(
        command=request.command,
        environment=request.environment,
        limits=elastic.limits,
        hosts=request.hosts,
        script=options.script,
        slots=options.slots,
        cooldown=options.cooldown,
        health_check=options.health_check,
        ssh=request.ssh,
        interfaces=request.interfaces,
        heartbeat=elastic.heartbeat,
        output_directory=request.output_directory,
        output_setting=request.output_setting,
        timestamps=request.timestamps,
        verbose=request.verbose,
        descriptors=request.descriptors,
        explain=request.explain,
    )
    return run_elastic_job(spec)


def _start_external(request: Request, slots: Sequence[Slot]) -> int:
    from hvdtune.launch.external.command import run_external

    if request.method is Method.MPIRUN:
        words, environment, _ = _external(request, slots, "")
        return run_external(words, environment, verbose=request.verbose)
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="hvdtune-ranks-") as file:
        words, environment, content = _external(request, slots, file.name)
        file.write(content)
        file.flush()
        return run_external(words, environment, verbose=request.verbose)


def dry_run(request: Request) -> list[str]:
    """The commands that `start` would run, quoted for a shell, one per line; nothing is started.

    mpirun is asked for its version; no other host is contacted. Values that differ for every job
    (its name, its secret) are left out. Comments describe what travels over ssh's standard input,
    and what an elastic job depends on.
    """
    elastic = request.elastic
    comments = _elastic_comments(elastic) if elastic is not None else []
    if elastic is not None:
        environment = {**request.environment, "HOROVOD_ELASTIC": "1"}
        if not request.hosts:
            return [*comments, _command(request, environment)]
        there = sum(host.slots for host in request.hosts)
        most = min(there, elastic.limits.most or there)
        processes = max(request.processes, most)
        request = request._replace(processes=processes, environment=environment)
    slots = _slots(request)
    if request.method is not Method.OWN:
        words, _, content = _external(request, slots, _RANKFILE, dry=True)
        comments = [f"# {_RANKFILE}: {line}".rstrip() for line in content.splitlines()]
        return [*comments, shlex.join(words)]
    remote = _remote(slot.hostname for slot in slots)
    lines = comments
    for name in dict.fromkeys(slot.hostname for slot in slots):
        workers = [
            environments.worker_environment(request.environment, slot)
            for slot in slots
            if slot.hostname == name
        ]
        commands = [_command(request, worker) for worker in workers]
        if name in remote:
            mode = "run" if elastic is None else "serve"
            lines.append(shlex.join(request.ssh.command(name, mode)))
            commands = [f"# on {name}: {command}" for command in commands]
        lines += commands
    return lines


def _elastic_comments(elastic: Elastic) -> list[str]:
    limits, script = elastic.limits, elastic.options.script
    lines = [
        f"# elastic: starts with {limits.processes} slots, goes on with {limits.least}, "
        f"uses {f'{limits.most} at most' if limits.most else 'all there are'}"
    ]
    if script is not None:
        lines.append(f"# hosts, every second: {script}")
    if elastic.options.health_check is not None:
        lines.append(f"# on each host first: {elastic.options.health_check}")
    return lines


def _slots(request: Request) -> list[Slot]:
    ours = request.method is Method.OWN
    kept = capacity.OUTPUT_FILES if request.output_directory else 0
    files = capacity.PIPES + kept if ours else 0
    capacity.require_room(request.hosts, request.processes, files=files)
    slots = assign_ranks(request.hosts, request.processes)
    names = [slot.hostname for slot in slots]
    if request.elastic is not None:  # later it may use all of its hosts
        names = [host.name for host in request.hosts]
    interfaces = request.interfaces
    has_effect = interfaces.by_flag or (interfaces.names and _remote(names))
    if has_effect and any(map(is_local, names)):
        interfaces.require(present_interfaces())
    return slots


def _remote(names: Iterable[str]) -> list[str]:
    """The hosts that are reached over ssh."""
    return [name for name in dict.fromkeys(names) if not is_local(name)]


def _check(request: Request, slots: Sequence[Slot], remote: Sequence[str]) -> dict[str, str]:
    """Find out what the other hosts are; return the variables that say where the ranks meet.

    There are none if all names are one machine's. Raises `LaunchError` if a host cannot be used.
    """
    from hvdtune.launch.remote import checks, identity, rendezvous

    own = identity.facts()
    cache = checks.cache_file(request.inherited) if request.use_cache else None
    # All ranks need the present address of rank 0's host, which may have another than an hour ago.
    fresh = slots[0].hostname if slots[-1].hostname != slots[0].hostname else ""
    found = checks.check_hosts(remote, request.ssh, request.start_timeout, cache, fresh)
    try:
        checks.require_alike(found, own["version"], request.interfaces)
    except LaunchError:
        if cache is None:
            raise
        # A remembered problem may have been solved since.
        cache.unlink(missing_ok=True)
        found = checks.check_hosts(remote, request.ssh, request.start_timeout, cache)
        checks.require_alike(found, own["version"], request.interfaces)
    machines = {slot.hostname: own["machine"] for slot in slots}
    machines.update((name, facts["machine"]) for name, facts in found.items())
    if len(set(machines.values())) == 1:
        return {}
    return rendezvous.over_ssh(list(machines), own, found, request.interfaces)


def _command(request: Request, environment: Mapping[str, str]) -> str:
    """The job's command with the variables that did not exist before, or had other values."""
    changed = [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if name not in SECRETS and request.inherited.get(name) != value
    ]
    return shlex.join(["env", *changed, *request.command])


def _external(
    request: Request, slots: Sequence[Slot], rankfile: str, dry: bool = False
) -> tuple[list[str], dict[str, str], str]:
    """The command of mpirun or jsrun, its environment, and the content of its `rankfile`."""
    from hvdtune.launch.external import jsrun
    from hvdtune.launch.remote import rendezvous

    environment = environments.without_place(request.environment)
    if request.method is Method.JSRUN:
        jsrun.require_jsrun(environment)
        if request.timestamps:
            _tell("--prefix-output-with-timestamp has no effect with jsrun.")
    names = list(dict.fromkeys(slot.hostname for slot in slots))
    environment |= rendezvous.by_names(names, request.interfaces, dry=dry)
    if request.method is Method.MPIRUN:
        return _mpirun(request, environment), environment, ""
    content = ""
    if not request.binding_args:
        content = jsrun.rankfile(slots, request.hosts, jsrun.node_of(environment, request.ssh))
    job = jsrun.JsrunJob(
        command=request.command,
        rankfile=rankfile,
        tcp=request.tcp,
        output_file=request.output_directory,
        binding_args=request.binding_args,
        mpi_args=request.mpi_args,
    )
    return jsrun.compose(job), environment, content


def _mpirun(request: Request, environment: Mapping[str, str]) -> list[str]:
    from hvdtune.launch.external import mpi

    flavour = mpi.detect_flavour(environment)
    interfaces = chosen = request.interfaces.by_flag
    if not chosen and all(is_local(host.name) for host in request.hosts):
        interfaces = loopback_interfaces()
    job = mpi.MpiJob(
        command=request.command,
        hosts=request.hosts,
        processes=request.processes,
        environment=environment,
        interfaces=interfaces,
        interfaces_chosen=bool(chosen),
        ssh_port=request.ssh.port,
        ssh_identity_file=request.ssh.identity_file,
        tcp=request.tcp,
        timestamps=request.timestamps,
        output_directory=request.output_directory,
        binding_args=request.binding_args,
        mpi_args=request.mpi_args,
    )
    for flag in mpi.without_effect(flavour, job):
        _tell(f"{flag} has no effect with {flavour.value}.")
    return mpi.compose(flavour, job)


def _tell(sentence: str) -> None:
    print(f"hvdtune run: {sentence}", file=sys.stderr, flush=True)
