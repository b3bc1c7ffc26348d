"""`hvdtune k8s mpijob|trainjob --name N --image I --slots 4 python train.py`: for Kubernetes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

from hvdtune.launch.flags import add_knob_flags
from hvdtune.launch.kubernetes.mpijob import IMPLEMENTATIONS, VERSIONS

HELP = "print a training job as objects of Kubernetes (Kubeflow's MPIJob or TrainJob)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; everything after the first other word is the command."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    _add_kind(kinds, "mpijob", "an MPIJob of Kubeflow's MPI Operator", _add_mpijob_flags)
    _add_kind(kinds, "trainjob", "a TrainJob of Kubeflow's Trainer, version 2", _add_trainjob_flags)


def _add_kind(kinds: Any, name: str, words: str, add_own: Callable[[Any], None]) -> None:
    # Otherwise flags of the command count as abbreviations of ours.
    kind = kinds.add_parser(
        name, help=words, description=f"Print {words}, as YAML.", allow_abbrev=False
    )
    kind.usage = f"hvdtune k8s {name} --name N --image I --slots N [options] command [argument …]"
    kind.epilog = "Settings given by flags become variables of the job's processes."
    job = kind.add_argument_group("the job")
    job.add_argument("--name", required=True, help="name of the job")
    job.add_argument("--image", required=True, help="container image with hvdtune and sshd")
    job.add_argument("--slots", required=True, type=_count, metavar="N", help="processes in a pod")
    job.add_argument(
        "--workers", type=_count, default=1, metavar="N", help="pods that train (default: 1)"
    )
    job.add_argument("--namespace", help="namespace to create it in")
    job.add_argument("--cpus", metavar="N", help="CPUs of a pod that trains: 4 or 500m")
    job.add_argument("--memory", metavar="SIZE", help="memory of a pod that trains: 16Gi")
    job.add_argument(
        "--gpus", type=_count, default=0, metavar="N", help="GPUs of a pod that trains"
    )
    job.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an additional variable",
    )
    add_own(job)
    add_knob_flags(kind)
    kind.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _add_mpijob_flags(job: Any) -> None:
    job.add_argument(
        "--api-version",
        choices=VERSIONS,
        default=VERSIONS[0],
        help="v2beta1: the MPI Operator from 0.3 on (default); v1: the Training Operator, whose "
        "launcher runs Open MPI's mpirun",
    )
    job.add_argument(
        "--mpi",
        choices=tuple(IMPLEMENTATIONS),
        default="openmpi",
        help="whose hostfile the operator of v2beta1 writes (default: openmpi); hvdtune reads each",
    )
    job.add_argument(
        "--min-workers",
        type=_count,
        metavar="N",
        help="make the job elastic: it starts with N pods, and goes on as long as N are left; "
        "change the number of the MPIJob's workers at any time",
    )
    job.add_argument(
        "--max-workers",
        type=_count,
        metavar="N",
        help="the most pods that may train, with --min-workers (default: --workers)",
    )


def _add_trainjob_flags(job: Any) -> None:
    job.add_argument(
        "--runtime",
        metavar="NAME",
        help="a ClusterTrainingRuntime with an MPI policy (default: also print a TrainingRuntime)",
    )


def _pods(args: argparse.Namespace) -> tuple[int, int] | None:
    """The fewest and the most pods of an elastic job."""
    from hvdtune.launch.errors import LaunchError

    if args.min_workers is None:
        if args.max_workers is not None:
            raise LaunchError("--max-workers is for elastic jobs: also give --min-workers.")
        return None
    return args.min_workers, args.max_workers or args.workers


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 100_000):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: give a whole number, 1 or more"
        )
    return int(text)


def _environment(args: argparse.Namespace, *, one_host: bool) -> dict[str, str]:
    """The variables of the job's processes, from flags and -e; says which flags have no effect."""
    from hvdtune.launch.errors import LaunchError
    from hvdtune.launch.settings import choose
    from hvdtune.settings.knobs import KNOBS

    given: dict[str, str] = {}
    for text in args.env:
        name, equals, value = text.partition("=")
        if not equals:
            raise LaunchError(f"-e {text}: give NAME=VALUE.")
        given[name] = value
    for key, (flag, _) in args.knobs.items():
        if KNOBS[key].env in given:
            raise LaunchError(
                f"-e {KNOBS[key].env}: {flag} gives this variable, too: leave one of them out."
            )
    choice = choose(args.knobs, None, given, one_host=one_host)
    for notice in choice.notices:
        print(f"hvdtune k8s: {notice}", file=sys.stderr)
    return {**given, **choice.variables()}


def run(args: argparse.Namespace) -> int:
    """Print the YAML."""
    from hvdtune.launch.errors import LaunchError
    from hvdtune.launch.kubernetes.job import Job
    from hvdtune.launch.kubernetes.mpijob import mpijob
    from hvdtune.launch.kubernetes.trainjob import trainjob

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LaunchError(f"give the command to run: hvdtune k8s {args.kind} … python train.py")
    pods = _pods(args) if args.kind == "mpijob" else None
    most = pods[1] if pods else args.workers
    job = Job(
        name=args.name,
        image=args.image,
        command=command,
        slots=args.slots,
        workers=args.workers,
        namespace=args.namespace,
        cpus=args.cpus,
        memory=args.memory,
        gpus=args.gpus,
        environment=_environment(args, one_host=most == 1),
    )
    if args.kind == "mpijob":
        objects = [mpijob(job, args.api_version, args.mpi, pods)]
    else:
        objects = trainjob(job, args.runtime)
    print(_yaml(objects), end="")
    return 0


def _yaml(objects: list[dict[str, Any]]) -> str:
    """The objects as YAML.

    Kubernetes' parser takes more texts for numbers and booleans than PyYAML does, such as 1e-4, 08
    and y: they get quotes.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        style = "'" if re.match(r"[-+]?\.?[0-9]|[yYnN]$", value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, default_flow_style=False))
