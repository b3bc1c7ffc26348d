"""`hvdtune jobs`: the running jobs of this user on this host."""

from __future__ import annotations

import argparse

HELP = "list your running jobs on this host"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no flags."""


def run(args: argparse.Namespace) -> int:
    """Print one line per job; return 0, even if there is none."""
    from hvdtune.live import client

    found = client.jobs()
    for endpoint, status in found:
        print(client.describe(endpoint, status))
    if not found:
        print(f"no job of yours is running {client.WHERE}")
    return 0
