"""A job's recording (HOROVOD_TIMELINE): brings it from the workers' nodes to the program."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hvdtune.core.observation.recording import run_finisher
from hvdtune.ray.node_files import RECORDING


class Recording(NamedTuple):
    """The path of the joined recording, and the folder of its parts on every node."""

    path: str
    folder: str

    def on_nodes(self) -> dict[str, str]:
        """The variable that makes workers record there."""
        return {RECORDING: os.path.join(self.folder, os.path.basename(self.path))}


def asked_for(variables: Mapping[str, str]) -> Recording | None:
    """The recording that a job with these variables makes from its start, or None."""
    name = variables.get(RECORDING, "")
    if not name or name.upper() == "DYNAMIC":
        return None
    folder = os.path.join(tempfile.gettempdir(), f"hvdtune-ray-{os.urandom(8).hex()}")
    return Recording(os.path.abspath(name), folder)


def save(path: str, files: Mapping[str, bytes], joins: bool) -> str:
    """Write the ranks' files, by their names on the nodes, and join them if `joins`.

    Returns the path of the result: `path`, or one beside it if that file exists. Warns if the files
    cannot be joined; then they stay there.
    """
    asked = Path(path)
    stem, chosen, number = asked.name.partition(".")[0], asked, 1
    while chosen.exists():
        number += 1
        chosen = asked.with_name(f"{stem}-{number}{asked.name.removeprefix(stem)}")
    asked.parent.mkdir(parents=True, exist_ok=True)
    new_stem = chosen.name.partition(".")[0]
    for name, content in files.items():
        asked.with_name(new_stem + name.removeprefix(stem)).write_bytes(content)
    problem = run_finisher(str(chosen)) if joins else ""
    if problem:
        warnings.warn(problem, UserWarning, stacklevel=2)
    return str(chosen)
