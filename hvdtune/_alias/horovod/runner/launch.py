"""Horovod's launcher as a command: `python -m horovod.runner.launch -np 4 python train.py`."""

from __future__ import annotations

import sys

from hvdtune.cli.main import main

from .. import _absent

__getattr__ = _absent.refusing("horovod.runner.launch")


def run_commandline() -> None:
    """What `horovodrun` does: `hvdtune run` with sys.argv; exits with its status."""
    sys.exit(main(["run", *sys.argv[1:]]))


if __name__ == "__main__":
    run_commandline()
