"""What `import horovod` and `horovodrun` use here, in words."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping

from hvdtune.alias.files import INSTALLER
from hvdtune.alias.installation import COMMAND, horovod_package, is_ours, root
from hvdtune.launch.local.environment import PREFER_HOROVOD, alias_folder

PTH_FILE = "hvdtune-horovod-alias.pth"


def describe(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Pairs of (the name, what it means in this environment)."""
    return [
        ("import horovod", _package(environ)),
        (COMMAND, _command(environ)),
        ("pip, importlib.metadata", _metadata()),
        ("in hvdtune run and python -m hvdtune", _launched(environ)),
    ]


def _package(environ: Mapping[str, str]) -> str:
    package = horovod_package()
    if package is None:
        return "nothing: there is no module horovod. hvdtune alias install puts one here"
    if not is_ours(package):
        return f"not hvdtune: {package}"
    folder = str(package.parent.parent)
    if package.parent.parent.name != "_alias":
        return f"hvdtune, through hvdtune alias install in {folder}"
    if folder in environ.get("PYTHONPATH", "").split(os.pathsep):
        return f"hvdtune, through PYTHONPATH ({folder})"
    if any(os.path.exists(os.path.join(entry, PTH_FILE)) for entry in sys.path if entry):
        return f"hvdtune, through {PTH_FILE}, last on sys.path: a real Horovod would win"
    return f"hvdtune, through an entry of sys.path ({folder})"


def _command(environ: Mapping[str, str]) -> str:
    found = shutil.which(COMMAND, path=environ.get("PATH"))
    if found is None:
        return f"nothing: no {COMMAND} on PATH. hvdtune alias install puts one here"
    with open(found, "rb") as file:
        ours = b"hvdtune alias" in file.read(1024)
    return f"hvdtune run, through {found}" if ours else f"not hvdtune: {found}"


def _metadata() -> str:
    try:
        distribution = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return "nothing: no distribution horovod is installed"
    ours = (distribution.read_text("INSTALLER") or "").strip() == INSTALLER
    who = "hvdtune's, through hvdtune alias install" if ours else "not hvdtune's"
    return f"horovod {distribution.version}, {who}"


def _launched(environ: Mapping[str, str]) -> str:
    if alias_folder(environ):
        return f"import horovod is hvdtune ({root()}), whatever else is installed"
    return f"as above: {PREFER_HOROVOD}={environ[PREFER_HOROVOD]} is set"
