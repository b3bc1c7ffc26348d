"""The running job that a verb is about."""

from __future__ import annotations

import argparse


def add_job(parser: argparse.ArgumentParser) -> None:
    """Declare `--job`."""
    parser.add_argument(
        "--job",
        metavar="JOB",
        help="the job's id, the beginning of the id, or rank 0's process id; needed if several of "
        "your jobs run",
    )
