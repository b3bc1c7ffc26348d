"""hvdtune's source without its compiled part: importing it gives the installed hvdtune.

Python looks beside the script, or in the working directory, first. In a checkout it finds the
source there, which cannot run, even if a compiled hvdtune is installed.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder

_NATIVE = "hvdtune._native"


def hand_over(version: str, folders: list[str]) -> bool:
    """If this hvdtune, in `folders`, is uncompiled, put the installed one in its place.

    Called at the beginning of the package's import. Returns whether it did so; the importer then
    gets the other package, and this one is forgotten.
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    if any(finder.find_spec(_NATIVE, folders) for finder in finders):
        return False
    spec = _installed()
    if spec is None or spec.loader is None:
        return False
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    for name in [name for name in sys.modules if name.startswith("hvdtune.")]:
        del sys.modules[name]
    sys.modules["hvdtune"] = module
    spec.loader.exec_module(module)
    if module.__version__ != version:
        import warnings

        warnings.warn(
            f"{folders[0]} is the source of hvdtune {version}, which was not compiled: hvdtune "
            f"{module.__version__}, installed as {spec.origin}, takes its place",
            RuntimeWarning,
            stacklevel=3,
        )
    return True


def _installed() -> ModuleSpec | None:
    """The first hvdtune on sys.path that is compiled."""
    for entry in sys.path:
        spec = PathFinder.find_spec("hvdtune", [entry])
        found = spec.submodule_search_locations if spec is not None else None
        if found and PathFinder.find_spec(_NATIVE, [*found]):
            return spec
    return None
