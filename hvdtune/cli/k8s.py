"""`hvdtune k8s mpijob --name N --image I --slots 4 python train.py`: a job for Kubernetes."""

from __future__ import annotations

import argparse

from hvdtune.launch.flags import add_knob_flags

HELP = "print a training job as an object of Kubernetes (Kubeflow's MPIJob)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; everything after the first other word is the command."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    words = "an MPIJob of Kubeflow's MPI Operator, version 2"
    kind = kinds.add_parser("mpijob", help=words, description=f"Print {words}, as YAML.")
    kind.usage = "hvdtune k8s mpijob --name N --image I --slots N [options] command [argument …]"
    kind.epilog = "Settings given by flags become variables of the job's processes."
    job = kind.add_argument_group("the job")
    job.add_argument("--name", required=True, help="name of the job")
    job.add_argument(
        "--image", required=True, help="container image with hvdtune, Open MPI and sshd"
    )
    job.add_argument("--slots", required=True, type=_count, metavar="N", help="processes in a pod")
    job.add_argument("--workers", type=_count, default=1, metavar="N", help="worker pods (1)")
    job.add_argument("--namespace", help="where to create it")
    job.add_argument("--cpus", metavar="N", help="CPUs of a worker pod: 4 or 500m")
    job.add_argument("--memory", metavar="SIZE", help="memory of a worker pod: 16Gi")
    job.add_argument("--gpus", type=_count, default=0, metavar="N", help="GPUs of a worker pod")
    job.add_argument(
        "-e", "--env", action="append", default=[], metavar="NAME=VALUE", help="a further variable"
    )
    add_knob_flags(kind)
    kind.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 100_000):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not accepted: give a whole number, 1 or more"
        )
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print the YAML."""
    import yaml

    from hvdtune.launch.allocation.kubernetes import MpiJobSpec, mpijob
    from hvdtune.launch.errors import LaunchError
    from hvdtune.launch.settings import choose

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LaunchError("give the command to run: hvdtune k8s mpijob … python train.py")
    variables = choose(args.knobs, None, {}).variables()
    for text in args.env:
        name, equals, value = text.partition("=")
        if not equals:
            raise LaunchError(f"-e {text}: give NAME=VALUE.")
        variables[name] = value
    spec = MpiJobSpec(
        name=args.name,
        image=args.image,
        command=command,
        slots=args.slots,
        workers=args.workers,
        namespace=args.namespace,
        cpus=args.cpus,
        memory=args.memory,
        gpus=args.gpus,
        environment=variables,
    )
    print(yaml.safe_dump(mpijob(spec), sort_keys=False, default_flow_style=False), end="")
    return 0
