"""`hvdtune run -np 4 python train.py`: start a job on this machine, with horovodrun's flags."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from hvdtune.launch import unsupported
from hvdtune.launch.flags import add_knob_flags

HELP = "start a training script as several processes, as horovodrun does"

# Flags of horovodrun whose meaning this version does not have: (names, words taken, why not).
_UNSUPPORTED: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--mpi",), 0, unsupported.MPI),
    (("--jsrun",), 0, "this version does not start jobs through LSF's jsrun"),
    (("--mpi-args",), 1, unsupported.MPIRUN),
    (("--binding-args",), 1, unsupported.MPIRUN),
    (("-p", "--ssh-port"), 1, unsupported.SSH),
    (("-i", "--ssh-identity-file"), 1, unsupported.SSH),
    (("--host-discovery-script",), 1, unsupported.ELASTIC),
    (("--min-np", "--min-num-proc"), 1, unsupported.ELASTIC),
    (("--max-np", "--max-num-proc"), 1, unsupported.ELASTIC),
    (("--slots-per-host",), 1, unsupported.ELASTIC),
    (("--elastic-timeout",), 1, unsupported.ELASTIC),
    (("--reset-limit",), 1, unsupported.ELASTIC),
    (("--blacklist-cooldown-range",), 2, unsupported.ELASTIC),
)


class _Unsupported(argparse.Action):
    """A flag that ends in one sentence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string}: {self.const}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare horovodrun's flags; everything after the first other word is the command."""
    parser.usage = "hvdtune run -np N [options] command [argument …]"
    parser.epilog = (
        "The exit status is 0, or that of the first process that failed (128 + N for signal N). "
        "Settings: the command line goes before --config-file, that before the environment; "
        "`hvdtune config` shows them all."
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="print what this build offers"
    )
    _add_job_flags(parser)
    _add_output_flags(parser)
    add_knob_flags(parser)
    for names, words, why in _UNSUPPORTED:
        parser.add_argument(
            *names, action=_Unsupported, nargs=words or 0, const=why, help=argparse.SUPPRESS
        )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("the job")
    job.add_argument(
        "-np", "--num-proc", dest="np", type=_count, metavar="N", help="number of processes"
    )
    hosts = job.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H", "--hosts", metavar="HOST:N,…", help="slots on each host (default: localhost:NP)"
    )
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="the same as lines 'HOST slots=N'"
    )
    # What it asks for, a start without mpirun, is what there is.
    job.add_argument("--gloo", action="store_true", help="accepted; mpirun is never needed")
    job.add_argument("--config-file", metavar="FILE", help="settings in YAML")
    job.add_argument(
        "--network-interfaces", "--network-interface", action="append", help=argparse.SUPPRESS
    )
    # For programs that start a job: it ends when the process with this number, its parent, does.
    job.add_argument("--parent", type=_count, help=argparse.SUPPRESS)
    job.add_argument(
        "--disable-cache", action="store_true", help="accepted; checks are never cached"
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
    output.add_argument("--verbose", action="store_true", help="say what is started and what ends")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: give a whole number, 1 or more"
        )
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the job; the exit status is the first failing worker's, or 0.

    Mistakes of the command line end with status 2 before anything is started.
    """
    if args.version or args.check_build:
        return _about(args.check_build)
    if args.parent is not None:
        from hvdtune.launch import processes

        processes.die_with_parent(signal.SIGTERM, args.parent)
    from hvdtune.launch import environment, hosts, job

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.np is None:
        return _mistake("give the number of processes: hvdtune run -np N command")
    if not command:
        return _mistake(f"give the command to run: hvdtune run -np {args.np} python train.py")
    choice = _settings(args)
    slots = hosts.assign_ranks(_hosts(args), args.np)
    hosts.require_local(slots)
    shared = environment.job_environment({**os.environ, **choice.variables()})
    spec = job.JobSpec(
        command=command,
        slots=slots,
        environment=shared,
        output_directory=args.output_filename,
        timestamps=args.timestamps,
        verbose=args.verbose,
    )
    return job.run_job(spec)


def _about(build: bool) -> int:
    from hvdtune.cli.main import version

    if build:
        from hvdtune.launch.build_info import check_build

        print(check_build(version()))
    else:
        print(version())
    return 0


def _settings(args: argparse.Namespace) -> Any:
    from hvdtune.launch.settings import choose

    config = None
    if args.config_file:
        from hvdtune.launch.config_file import read_config_file

        config = read_config_file(args.config_file)
    choice = choose(args.knobs, config, os.environ)
    notices = list(choice.notices)
    if args.network_interfaces:
        notices.append("--network-interfaces has no effect: the job runs on one host.")
    for notice in notices:
        print(f"hvdtune run: {notice}", file=sys.stderr)
    return choice


def _hosts(args: argparse.Namespace) -> Any:
    from hvdtune.launch import hosts

    if args.hosts is not None:
        return hosts.parse_hosts(args.hosts)
    if args.hostfile is not None:
        return hosts.read_hostfile(args.hostfile)
    return [hosts.Host("localhost", args.np)]


def _mistake(sentence: str) -> int:
    print(f"hvdtune run: {sentence}", file=sys.stderr)
    return 2
