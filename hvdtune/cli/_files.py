"""Files on the command line: their faults, found before anything is read or written."""

from __future__ import annotations

import os
from collections.abc import Sequence


def check_recordings(paths: Sequence[str]) -> None:
    """Raise ValueError if a path is a folder; a missing file is reported when it is opened."""
    for path in paths:
        if not os.path.isdir(path):
            continue
        inside = sorted(
            name for name in os.listdir(path)
            if name.endswith((".json", ".json.gz")) and ".rank" not in name
        )  # fmt: skip
        example = os.path.join(path, inside[0] if inside else "t.json")
        raise ValueError(f"{path} is a folder: give rank 0's file in it, such as {example}")


def check_output(flag: str, path: str, read: Sequence[str] = ()) -> None:
    """Raise ValueError if `path` is a folder, in no existing folder, or one of the files `read`."""
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise ValueError(f"{flag} {path} is a folder: give the name of a file")
    if folder and not os.path.isdir(folder):
        raise ValueError(f"{flag} {path} cannot be written: there is no folder {folder}")
    for one in read:
        if os.path.exists(path) and os.path.exists(one) and os.path.samefile(path, one):
            raise ValueError(f"{flag} {path} would replace an input file: give another one")
