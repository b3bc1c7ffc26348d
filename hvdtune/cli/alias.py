"""`hvdtune alias install|remove|status`: which package `import horovod` and `horovodrun` use."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from hvdtune.launch.doctor.build_info import HOROVOD_VERSION

HELP = "make `import horovod` and the command horovodrun use hvdtune in this environment"

DESCRIPTION = f"""\
install  puts a package horovod (version {HOROVOD_VERSION}) and a command horovodrun into this
         environment: scripts, Makefiles and mpirun lines written for Horovod work unchanged.
         Refused if the real Horovod is installed.
remove   removes exactly what install has added (so does pip uninstall horovod).
status   says what `import horovod` and horovodrun use now, and why.
"""
EPILOG = """\
Neither is needed under hvdtune run, nor for one script: python -m hvdtune train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "hvdtune alias [-h] [--user] {install,remove,status}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = f"{HELP}\n\n{DESCRIPTION}", EPILOG
    parser.add_argument(
        "action", choices=("install", "remove", "status"), help="what to do; see above"
    )
    parser.add_argument(
        "--user",
        action="store_true",
        help="install or remove in your own folders, as pip install --user (default: where "
        "hvdtune is, or else the environment of this Python)",
    )


def run(args: argparse.Namespace) -> int:
    """Carry it out; return 0, or 1 with a sentence on stderr if it is refused."""
    from hvdtune.alias.installation import AliasError

    try:
        return {"install": _install, "remove": _remove, "status": _status}[args.action](args)
    except AliasError as error:
        print(f"hvdtune alias: {error}", file=sys.stderr)
        return 1


def _place(args: argparse.Namespace) -> Any:
    from hvdtune.alias import installation

    if not args.user:
        return installation.default_place()
    place = installation.user_place()
    if place is None:
        raise installation.AliasError(
            f"--user: {sys.executable} does not look into a user's own folders; leave it out."
        )
    return place


def _install(args: argparse.Namespace) -> int:
    from hvdtune.alias import installation

    place = _place(args)
    installation.install(place)
    command = place.commands / installation.COMMAND
    print(f"`import horovod` and {command} now mean hvdtune.")
    if str(place.commands) not in os.environ.get("PATH", "").split(os.pathsep):
        print(f"{place.commands} is not on PATH: add it to call {installation.COMMAND} by name.")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from hvdtune.alias import installation

    place = _place(args)
    if not place.installed:
        print(f"nothing to remove: hvdtune alias install has put nothing into {place.packages}.")
        return 0
    installation.remove(place)
    print(f"removed from {place.packages} and {place.commands}.")
    return 0


def _status(args: argparse.Namespace) -> int:
    from hvdtune.alias.resolution import describe

    rows = describe()
    width = max(len(asked) for asked, _ in rows)
    for asked, meaning in rows:
        print(f"{asked:<{width}}  {meaning}")
    return 0
