"""`hvdtune top`: a running job, live."""

from __future__ import annotations

import argparse

from hvdtune.cli._job import add_job

HELP = "show a running job live: steps/s, exposed communication, slowest rank, queue, stalls, tuner"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_job(parser)
    parser.add_argument("--once", action="store_true", help="print one reading and end")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between readings (1)"
    )


def run(args: argparse.Namespace) -> int:
    """Show until the job ends or Ctrl-C; return 0, or 1 if there is no such job."""
    from hvdtune.live import client, top

    if not args.interval > 0:
        raise ValueError(f"--interval {args.interval:g} is not accepted: give seconds above 0")
    endpoint = client.find(args.job)
    if args.once:
        print(top.once(endpoint))
    else:
        top.follow(endpoint, args.interval)
    return 0
