"""Programs in the place of LSF's, and `hvdtune run --jsrun` where it finds them."""

from __future__ import annotations

import sys
from pathlib import Path

LAUNCHER = """
import sys
from hvdtune.launch.allocation import lsf
lsf.ALLOCATION_QUERY, lsf.NODE_QUERY = {folder!r} + "/allocation", {folder!r} + "/node"
from hvdtune.cli.main import main
sys.exit(main(["run", "--jsrun", *sys.argv[1:]]))
"""


def answers(nodes: str, cores: int) -> dict[str, str]:
    """Shell commands that answer as LSF's programs do, by name: nodes of one socket and 2 GPUs."""
    return {
        "allocation": f'printf "compute_nodes: [%s]\\nisolated_cores: 0\\n" "{nodes}"',
        "node": (
            f'printf "Record_1:\\n  discovered_cores: {cores}\\n  discovered_sockets: 1\\n'
            '  discovered_gpus: 2\\n"'
        ),
    }


def place(folder: Path, commands: dict[str, str], jsrun: str) -> list[str]:
    """Put shell `commands`, by name, and the program `jsrun` there; the launcher that uses them."""
    scripts = {name: f"#!/bin/sh\n{text}\n" for name, text in commands.items()}
    for name, text in {**scripts, "jsrun": jsrun}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return [sys.executable, "-c", LAUNCHER.format(folder=str(folder))]
