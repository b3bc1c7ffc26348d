"""`hvdtune.run(function, num_proc=4)`: a Python function as a job, its results in rank order.

This module checks the arguments. `call` starts a separate process for the launcher (`job`), which
starts the workers (`worker`). No process imports the caller's script again, so it needs no `if
__name__ == "__main__"`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvdtune.core.libraries.network import INTERFACES, interface_names
from hvdtune.launch.allocation import capacity
from hvdtune.launch.allocation import hosts as host_lists
from hvdtune.launch.elastic import options
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.function import exchange
from hvdtune.launch.function.call import FunctionCall
from hvdtune.launch.local import environment
from hvdtune.launch.remote.interfaces import Interfaces
from hvdtune.launch.remote.ssh import Ssh
from hvdtune.launch.settings import choose
from hvdtune.launch.start import Method
from hvdtune.settings import knobs


# fmt: off
def run(
    func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1, min_num_proc: int | None = None, max_num_proc: int | None = None,
    slots: int | None = None, reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None, hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None, host_discovery_script: str | None = None,
    start_timeout: float | None = None, ssh_port: int | None = None,
    ssh_identity_file: str | None = None, disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None, verbose: int | bool | None = None,
    use_gloo: bool | None = None, use_mpi: bool | None = None, mpi_args: str | None = None,
    network_interface: str | None = None, network_interfaces: Sequence[str] | str | None = None,
    executable: str | None = None,
    np: int | None = None, min_np: int | None = None, max_np: int | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` in `num_proc` processes; return what each returned, by rank.

    The signature is Horovod's. The workers are new Python processes with the caller's sys.path,
    working directory and environment; each line that they print is passed on with its rank before
    it. The function, its arguments and its results are pickled by cloudpickle. Settings come from
    the environment (HOROVOD_*).

    With `min_num_proc` or `host_discovery_script` the job is elastic, as with the flags of `hvdtune
    run` (HOROVOD_ELASTIC_TIMEOUT says how long it waits for slots). It then returns the results of
    the first `min_num_proc` ranks that it had in the end.

    Args:
        min_num_proc: fewest processes that the job goes on with; `num_proc` by default.
        max_num_proc: most processes; by default as many as there are slots.
        slots: slots of hosts that the script prints without any; 1 by default.
        reset_limit: how often processes may come together anew.
        cooldown_range: shortest and longest time, in seconds, for which a host on which a process
            failed gets no new one; by default it never gets one again.
        host_discovery_script: a command for the shell that prints a line "HOST:SLOTS" per host.
        hosts: "localhost:4,other:4", slots on each host; `hostfile` names a file that says the
            same. Other hosts are reached with ssh, as by `hvdtune run -H`; hvdtune, and what the
            function needs, must be installed there. The workers there connect to this process.
        ssh_port, ssh_identity_file: for ssh.
        network_interfaces: a list, or names with commas between: those that the hosts use.
        use_mpi: have mpirun start the workers, with the words `mpi_args` if given.
        start_timeout: seconds until all ranks must have started.
        output_filename: directory for each worker's output, as --output-filename.
        verbose: whether to say what is started and what ends.
        executable: the Python of the workers; by default this one.
        disable_cache: query the other hosts again, even if that was done within the last hour.
        np, min_np, max_np, network_interface: old names of num_proc, … (DeprecationWarning).

    Raises RuntimeError naming the first rank that failed, its exit code and its last lines. Raises
    ValueError for arguments that contradict each other or are not accepted, and TypeError if `func`
    is not callable or the function or its arguments cannot be pickled. When it raises, all workers
    have ended.
    """
    count = _checked_count(_renamed("np", np, "num_proc", num_proc, 1))
    elastic = _elastic(
        min_num_proc=_renamed("min_np", min_np, "min_num_proc", min_num_proc),
        max_num_proc=_renamed("max_np", max_np, "max_num_proc", max_num_proc),
        slots=slots, reset_limit=reset_limit, cooldown_range=cooldown_range,
        host_discovery_script=host_discovery_script,
    )
    _check_controllers(use_gloo, use_mpi, elastic.is_elastic)
    interfaces = _names(_renamed(
        "network_interface", network_interface, "network_interfaces", network_interfaces
    ))
    chosen = _hosts(hosts, hostfile, count, elastic.script)
    alone = elastic.script is None and _here(chosen, None if elastic.is_elastic else count)
    inherits = alone and not use_mpi  # workers can have open files of this process
    if inherits:
        _warn_of_unused(
            "the job runs on one host", network_interfaces=interfaces, ssh_port=ssh_port,
            ssh_identity_file=ssh_identity_file,
        )
        interfaces, ssh_identity_file = [], None
    if not use_mpi:
        _warn_of_unused("mpirun does not start the job", mpi_args=mpi_args)
    if chosen:
        # A file for each result is open here, with a connection if it comes by one, and in the
        # launcher besides its pipes.
        own_files = 1 if inherits else 2
        capacity.require_room(chosen, count, "num_proc", capacity.PIPES + 1, own_files=own_files)
        host_lists.assign_ranks(chosen, count)
    environ, values = _environment(start_timeout, alone)
    plan: dict[str, Any] = {
        "processes": count,
        "hosts": chosen,
        "method": (Method.MPIRUN if use_mpi else Method.OWN).value,
        "executable": _executable(executable),
        "interfaces": _interfaces(interfaces, "" if alone else values["gloo_iface"]),
        "ssh": _ssh(values["ssh_command"], ssh_port, ssh_identity_file),
        "start_timeout": values["start_timeout"],
        "use_cache": not disable_cache,
        "tcp": values["tcp"],
        "output_directory": None if output_filename is None else os.fspath(output_filename),
        "verbose": bool(verbose),
        "mpi_args": mpi_args,
    }
    if elastic.is_elastic:
        plan["elastic"] = _elastic_plan(elastic, count, values)
        count = plan["elastic"]["limits"]["least"]
    addresses = None if inherits else exchange.addresses(interfaces)
    from hvdtune.launch.function import pickling

    call = pickling.call(func, args, kwargs)
    return FunctionCall(plan, call, environ, count, addresses).results()
# fmt: on


def _renamed(old: str, old_value: Any, new: str, value: Any, default: Any = None) -> Any:
    if old_value is None:
        return value
    # Two frames up is the line that called run().
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    if value not in (default, old_value):
        raise LaunchError(f"{old}={old_value!r} and {new}={value!r} contradict each other.")
    return old_value


def _elastic(**arguments: Any) -> options.Options:
    try:
        found, notices = options.settle(options.from_arguments(**arguments))
    except LaunchError as error:
        raise LaunchError(options.in_arguments(str(error))) from None
    for notice in notices:
        warnings.warn(options.in_arguments(notice), UserWarning, stacklevel=3)
    return found


def _elastic_plan(
    elastic: options.Options, count: int, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The elastic part of the plan for the launcher's process."""
    options.check_heartbeat(values["elastic_heartbeat"])
    try:
        limits = options.limits(elastic, count, values["elastic_timeout"], values["start_timeout"])
    except LaunchError as error:
        raise LaunchError(options.in_arguments(str(error))) from None
    return {
        "options": elastic._asdict(),
        "limits": limits._replace(replaces_failed=None)._asdict(),
        "heartbeat": values["elastic_heartbeat"],
    }


def _check_controllers(use_gloo: bool | None, use_mpi: bool | None, elastic: bool) -> None:
    if use_gloo and use_mpi:
        raise LaunchError("use_gloo and use_mpi exclude each other: give at most one of them.")
    if use_mpi and elastic:
        raise LaunchError("elastic jobs are started by hvdtune itself: leave out use_mpi.")


def _warn_of_unused(reason: str, **arguments: Any) -> None:
    """Warn about arguments without effect, which Horovod ignores silently."""
    for name, value in arguments.items():
        if value:
            warnings.warn(f"{name} has no effect: {reason}", UserWarning, stacklevel=3)


def _names(interfaces: Sequence[str] | str | None) -> list[str]:
    text = interfaces if isinstance(interfaces, str) else ",".join(interfaces or ())
    return interface_names(text)


def _interfaces(names: Sequence[str], variable: str) -> Interfaces:
    if names:
        return Interfaces(names, "network_interfaces")
    return Interfaces(interface_names(variable), INTERFACES)


def _ssh(command: str, port: int | None, identity_file: str | None) -> Ssh:
    if identity_file is not None:
        identity_file = os.path.expanduser(os.fspath(identity_file))
    if identity_file is not None and not os.path.isfile(identity_file):
        raise LaunchError(f"ssh_identity_file={identity_file!r}: there is no such file.")
    return Ssh(command, port, identity_file)


def _checked_count(count: Any) -> int:
    try:
        number = None if isinstance(count, bool) else count.__index__()
    except AttributeError:
        number = None
    if number is None or number < 1:
        raise LaunchError(f"num_proc={count!r} is not accepted: give a whole number, 1 or more.")
    return int(number)


def _hosts(
    text: str | None, hostfile: str | os.PathLike[str] | None, count: int, script: str | None
) -> list[host_lists.Host]:
    if script is not None and (text is not None or hostfile is not None):
        raise LaunchError(
            "host_discovery_script says which hosts there are: leave out hosts and hostfile."
        )
    if script is not None:
        return []
    if text is not None and hostfile is not None:
        raise LaunchError("hosts and hostfile exclude each other: give one of them.")
    if text is not None:
        found = host_lists.parse_hosts(text, "hosts:")
    elif hostfile is not None:
        found = host_lists.read_hostfile(os.fspath(hostfile), "hostfile")
    else:
        found = [host_lists.Host("localhost", count)]
    return found


def _here(hosts: Sequence[host_lists.Host], count: int | None) -> bool:
    """Whether this machine runs the first `count` processes, or all that have a slot."""
    names, left = [], count
    for host in hosts:
        if left is not None:
            if left <= 0:
                break
            left -= host.slots
        names.append(host.name)
    return all(map(host_lists.is_local, names))


def _executable(executable: str | None) -> str:
    chosen = executable or sys.executable
    if not chosen:
        raise LaunchError("this program does not know its Python interpreter: give executable.")
    return chosen


def _environment(
    start_timeout: float | None, one_host: bool
) -> tuple[dict[str, str], dict[str, Any]]:
    """The workers' environment, and the settings by key.

    Raises `KnobError` naming a setting that is malformed.
    """
    given = {}
    if start_timeout is not None:
        knob = knobs.KNOBS["start_timeout"]
        given[knob.key] = ("start_timeout", knobs.parse(knob, start_timeout, "start_timeout"))
    choice = choose(given, None, os.environ, one_host=one_host)
    variables = environment.job_environment({**os.environ, **choice.variables()})
    return variables, choice.values
