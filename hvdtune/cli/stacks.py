"""`hvdtune stacks`: the lines that the ranks of a running job are executing in Python."""

from __future__ import annotations

import argparse

from hvdtune.cli._job import add_job

HELP = "print where each rank of a running job is in its Python code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_job(parser)
    parser.add_argument("--rank", type=int, metavar="R", help="only this rank")


def run(args: argparse.Namespace) -> int:
    """Print to stdout; return 0, or 1 if there is no such job."""
    from hvdtune.live import client

    question = "stacks" if args.rank is None else f"stacks {args.rank}"
    print(client.ask(client.find(args.job), question), end="")
    return 0
