"""The files of `hvdtune alias install`: a package, a command, and the metadata of both.

The package is not a copy: when it is imported, it loads the alias of the hvdtune installed then,
so an upgrade of hvdtune needs no second installation.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from hvdtune.launch.doctor.build_info import HOROVOD_VERSION

INSTALLER = "hvdtune alias"
METADATA_FOLDER = f"horovod-{HOROVOD_VERSION}.dist-info"
#: Linux reads at most this many bytes of a script's first line.
_SHEBANG_LIMIT = 127

_PACKAGE = '''\
"""Horovod's interface, offered by hvdtune; `hvdtune alias remove` removes this package."""

import importlib.machinery
import importlib.util
import os
import sys

HVDTUNE = {root!r}


def _load():
    found = importlib.util.find_spec("hvdtune")
    if found is None and os.path.isdir(os.path.join(HVDTUNE, "hvdtune")):
        sys.path.append(HVDTUNE)
        found = importlib.util.find_spec("hvdtune")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"horovod stands for hvdtune here ({{__file__}}), but hvdtune is not installed for "
            f"{{sys.executable}}: install it there, or remove this with pip uninstall horovod.",
            name="hvdtune",
        )
    folder = os.path.join(os.path.dirname(found.origin), "_alias")
    spec = importlib.machinery.PathFinder.find_spec(__name__, [folder])
    module = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


_load()
'''

_COMMAND = '''\
"""horovodrun by hvdtune: `hvdtune run`. `hvdtune alias remove` removes this file."""

import os
import sys

HVDTUNE = {root!r}

if __name__ == "__main__":
    # This folder holds commands, not modules.
    folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        import hvdtune
    except ModuleNotFoundError as error:
        if error.name != "hvdtune" or not os.path.isdir(os.path.join(HVDTUNE, "hvdtune")):
            sys.exit(f"horovodrun: hvdtune is not installed for {{sys.executable}}.")
        sys.path.append(HVDTUNE)
    from hvdtune.cli.main import main

    sys.exit(main(["run", *sys.argv[1:]]))
'''

_METADATA = """\
Metadata-Version: 2.1
Name: horovod
Version: {version}
Summary: Horovod's interface, offered by hvdtune (placed by `hvdtune alias install`)
"""

_WHEEL = """\
Wheel-Version: 1.0
Generator: hvdtune
Root-Is-Purelib: true
Tag: py3-none-any
"""


def package_files(root: Path) -> dict[str, str]:
    """Texts by path below site-packages, without the metadata's RECORD.

    `root` is the folder that holds the package hvdtune. The files look there if hvdtune is not on
    sys.path, as in a checkout that was built in place.
    """
    return {
        "horovod/__init__.py": _PACKAGE.format(root=str(root)),
        f"{METADATA_FOLDER}/METADATA": _METADATA.format(version=HOROVOD_VERSION),
        f"{METADATA_FOLDER}/WHEEL": _WHEEL,
        f"{METADATA_FOLDER}/INSTALLER": f"{INSTALLER}\n",
        f"{METADATA_FOLDER}/top_level.txt": "horovod\n",
    }


def command_text(root: Path, executable: str) -> str:
    """The command `horovodrun`: a Python script for `executable`, with its first line."""
    first = f"#!{executable}\n"
    if " " in executable or len(first.encode()) > _SHEBANG_LIMIT:
        # A shell sees two commands here, Python a string.
        first = f"#!/bin/sh\n'''exec' {shlex.quote(executable)} \"$0\" \"$@\"\n' '''\n"
    return first + _COMMAND.format(root=str(root))
