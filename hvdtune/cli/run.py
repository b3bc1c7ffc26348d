"""`hvdtune run -np 4 python train.py`: start a job, with horovodrun's flags."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
from typing import Any

from hvdtune.launch.elastic import options
from hvdtune.launch.flags import add_knob_flags, add_section

HELP = "start a training script as several processes, as horovodrun does"
ABBREVIATIONS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare horovodrun's flags; everything after the first other word is the command."""
    parser.usage = "hvdtune run -np N [options] command [argument …]"
    parser.epilog = (
        "The exit status is 0, or that of the first process that failed (128 + N for signal N); "
        "that of a failed elastic job is 1. "
        "The command line overrides --config-file, which overrides the environment; "
        "`hvdtune config` shows all settings."
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="print what this build offers"
    )
    _add_job_flags(parser)
    _add_output_flags(parser)
    add_section(options.add_flags(parser), options.SECTION)
    add_knob_flags(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("the job")
    job.add_argument(
        "-np",
        "--num-proc",
        dest="np",
        type=_count,
        metavar="N",
        help="number of processes; an elastic job starts with that many (default: what Slurm or "
        "LSF has given the job)",
    )
    hosts = job.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:N,…",
        help="slots on each host (default: what LSF has given the job, otherwise localhost:NP)",
    )
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="the same as lines 'HOST slots=N'"
    )
    method = job.add_mutually_exclusive_group()
    method.add_argument(
        "--gloo", action="store_true", help="start the processes without mpirun (the default)"
    )
    method.add_argument(
        "--mpi",
        action="store_true",
        help="have mpirun start the processes (HOROVOD_CPU_OPERATIONS=MPI: tensors also use MPI)",
    )
    method.add_argument("--jsrun", action="store_true", help="start the processes with LSF's jsrun")
    job.add_argument(
        "--mpi-args", metavar='"ARGS"', help='more words for mpirun: --mpi-args="-x NAME"'
    )
    job.add_argument(
        "--binding-args", metavar='"ARGS"', help="for mpirun instead of -bind-to none -map-by slot"
    )
    job.add_argument(
        "--dry-run", action="store_true", help="print the commands without running them"
    )
    job.add_argument("--config-file", metavar="FILE", help="read settings from this YAML file")
    job.add_argument(
        "--network-interfaces",
        "--network-interface",
        action="append",
        metavar="A,B",
        help="network interfaces that the ranks of several hosts use; also passed to mpirun",
    )
    job.add_argument("-p", "--ssh-port", type=_port, metavar="N", help="port of ssh on other hosts")
    job.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh to other hosts"
    )
    # For programs that start a job: the job ends when the process with this pid, its parent, ends.
    job.add_argument("--parent", type=_count, help=argparse.SUPPRESS)
    job.add_argument(
        "--disable-cache",
        action="store_true",
        help="query the other hosts again, even if that was done within the last hour",
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output-filename",
        metavar="DIR",
        help="also write each process's output to DIR/rank.<rank>/stdout and stderr",
    )
    output.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="timestamps",
        action="store_true",
        help="put the time before each line of output",
    )
    output.add_argument(
        "--verbose", action="store_true", help="report each process that starts or ends"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: give a whole number, 1 or more"
        )
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: give a port, from 1 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the job; the exit status is the first failing worker's, or 0.

    A mistake on the command line ends with status 2 before anything is started.
    """
    if args.version or args.check_build:
        return _about(args.check_build)
    if args.parent is not None:
        from hvdtune.launch.local import processes

        processes.die_with_parent(signal.SIGTERM, args.parent)
    from hvdtune.launch import start
    from hvdtune.launch.local.program import without_script

    inherited = dict(os.environ)
    command = _command(args)
    config = _config(args)
    elastic = _elastic(args, config)
    hosts, count = _hosts(args, elastic)
    if count is None:
        return _mistake("give the number of processes: hvdtune run -np N command")
    if not command:
        return _mistake(f"give the command to run: hvdtune run -np {count} python train.py")
    interpreter = without_script(command)
    if interpreter is not None:
        return _mistake(
            f"{interpreter} has no script, and ranks have no standard input to read one from: "
            f"hvdtune run -np {count} {interpreter} train.py"
        )
    if not (args.mpi or args.jsrun):
        _note_unused(args)
    request = _request(args, config, elastic, command, hosts, count, inherited)
    if args.dry_run:
        print(*start.dry_run(request), sep="\n")
        return 0
    return start.start(request)


def _command(args: argparse.Namespace) -> list[str]:
    """The command's words; variables before it (NAME=value) become the job's, as with `env`."""
    words = args.command[1:] if args.command[:1] == ["--"] else list(args.command)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        os.environ[name] = value
    return words


def _note_unused(args: argparse.Namespace) -> None:
    """Name the flags that are only for mpirun; horovodrun ignores them silently."""
    given = {"--mpi-args": args.mpi_args, "--binding-args": args.binding_args}
    flags = [flag for flag, value in given.items() if value is not None]
    if flags:
        print(
            f"hvdtune run: {' and '.join(flags)} {'are' if flags[1:] else 'is'} not used: mpirun "
            "does not start this job (it does with --mpi).",
            file=sys.stderr,
        )


def _config(args: argparse.Namespace) -> Any:
    if not args.config_file:
        return None
    from hvdtune.launch.config_file import read_config_file

    return read_config_file(args.config_file)


def _elastic(args: argparse.Namespace, config: Any) -> options.Options:
    """The options of elastic jobs in flags and file."""
    from hvdtune.launch.errors import LaunchError

    in_file = {} if config is None else options.read_section(config)
    found, notices = options.settle({**in_file, **args.elastic})
    if found.is_elastic and (args.mpi or args.jsrun):
        flag = "--mpi" if args.mpi else "--jsrun"
        raise LaunchError(f"elastic jobs are started by hvdtune itself: leave out {flag}.")
    if found.script is not None and (args.hosts or args.hostfile):
        raise LaunchError(
            "--host-discovery-script says which hosts there are: leave out -H and --hostfile."
        )
    for notice in notices:
        print(f"hvdtune run: {notice}", file=sys.stderr)
    return found


def _request(
    args: argparse.Namespace,
    config: Any,
    elastic: options.Options,
    command: list[str],
    hosts: list[Any],
    count: int,
    inherited: dict[str, str],
) -> Any:
    from hvdtune.launch import start
    from hvdtune.launch.local import environment
    from hvdtune.launch.remote.interfaces import named_interfaces

    # mpirun and jsrun may place ranks in another way, and an elastic job may grow.
    as_counted = not (args.mpi or args.jsrun or elastic.is_elastic)
    one_host = len(hosts) == 1 or (as_counted and bool(hosts) and hosts[0].slots >= count)
    choice = _settings(args, config, one_host=one_host)
    variables = {**os.environ, **choice.variables()}
    if choice.values["share_gpu"]:
        from hvdtune.launch.allocation.hosts import is_local
        from hvdtune.launch.doctor import share_gpu

        here = one_host and is_local(hosts[0].name)
        variables.update(share_gpu.variables(variables, count, here=here))
    return start.Request(
        command=command,
        hosts=hosts,
        processes=count,
        environment=environment.job_environment(variables),
        inherited=inherited,
        method=_method(args),
        interfaces=named_interfaces(
            args.network_interfaces, "" if one_host else choice.values["gloo_iface"]
        ),
        ssh=_ssh(args, choice),
        start_timeout=choice.values["start_timeout"],
        use_cache=not args.disable_cache,
        tcp=choice.values["tcp"],
        timestamps=args.timestamps,
        output_directory=args.output_filename,
        verbose=args.verbose,
        mpi_args=args.mpi_args,
        binding_args=args.binding_args,
        elastic=_limited(elastic, count, choice.values) if elastic.is_elastic else None,
    )


def _limited(elastic: options.Options, count: int, values: dict[str, Any]) -> Any:
    from hvdtune.launch import start

    options.check_heartbeat(values["elastic_heartbeat"])
    limits = options.limits(elastic, count, values["elastic_timeout"], values["start_timeout"])
    return start.Elastic(elastic, limits, values["elastic_heartbeat"])


def _about(build: bool) -> int:
    from hvdtune.cli.main import version

    if build:
        from hvdtune.launch.doctor.build_info import check_build

        print(check_build(version()))
    else:
        print(version())
    return 0


def _settings(args: argparse.Namespace, config: Any, *, one_host: bool) -> Any:
    from hvdtune.launch.settings import choose

    choice = choose(args.knobs, config, os.environ, one_host=one_host)
    by_others = args.mpi or args.jsrun  # mpirun and jsrun may be given --tcp
    notices = [words for words in choice.notices if not (by_others and words.startswith("--tcp "))]
    for notice in notices:
        print(f"hvdtune run: {notice}", file=sys.stderr)
    return choice


def _ssh(args: argparse.Namespace, choice: Any) -> Any:
    from hvdtune.launch.remote.ssh import Ssh

    key = args.ssh_identity_file
    if key is not None and not os.path.isfile(key):
        raise FileNotFoundError(errno.ENOENT, "there is no such file", f"--ssh-identity-file {key}")
    return Ssh(choice.values["ssh_command"], args.ssh_port, key)


def _method(args: argparse.Namespace) -> Any:
    from hvdtune.launch.start import Method

    if args.jsrun:
        return Method.JSRUN
    return Method.MPIRUN if args.mpi else Method.OWN


def _hosts(args: argparse.Namespace, elastic: options.Options) -> tuple[list[Any], int | None]:
    """The hosts, and the number of processes if it is known.

    -np alone means this machine, even if Slurm has given us more; within LSF it means the hosts of
    the job, as in Horovod.
    """
    from hvdtune.launch.allocation import hosts, lsf
    from hvdtune.launch.errors import LaunchError

    asked = args.np or elastic.min_np
    if elastic.script is not None:
        return [], asked
    if args.hosts is not None:
        return hosts.parse_hosts(args.hosts), asked
    if args.hostfile is not None:
        return hosts.read_hostfile(args.hostfile), asked
    if args.np is None or lsf.inside(os.environ):
        from hvdtune.launch.allocation.batch_system import allocation

        ours = allocation(os.environ)
        if ours is not None:
            if not (args.np or ours.processes):
                raise LaunchError("the allocation has no slots: give -np, and hosts with -H")
            return list(ours.hosts), args.np or ours.processes
    return [hosts.Host("localhost", asked or 1)], asked


def _mistake(sentence: str) -> int:
    print(f"hvdtune run: {sentence}", file=sys.stderr)
    return 2
