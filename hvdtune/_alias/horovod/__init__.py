"""Makes `import horovod.torch as hvd` reach hvdtune.

This package takes Horovod's place. Its modules are hvdtune's own, the very same objects
(`horovod.torch is hvdtune.torch`), so a program may import both names side by side. The directory
above is the last entry of sys.path, so a real horovod wins if it is installed, except under
`hvdtune run` and `python -m hvdtune`, which put it first (HVDTUNE_PREFER_HOROVOD=1 prevents that).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType
from typing import Any

from . import _absent

# hvdtune.launch.doctor.build_info has it too, but this package must load without hvdtune.
__version__ = "0.28.1"

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# Horovod's packages that are hvdtune's, with everything in them.
_PACKAGES = ("data", "keras", "mxnet", "ray", "spark", "tensorflow", "torch")
# Modules that have another name in hvdtune.
_MOVED = {
    "common.elastic": "elastic",
    "common.exceptions": "core.exceptions",
    "ray.elastic_v2": "ray.elastic.adapter",
}


class _Loader(Loader):
    """Puts hvdtune's corresponding module in the place of the one imported."""

    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._target)

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`, which runs a module's code under the name `__main__`."""
        spec = find_spec(self._target)
        loader = spec.loader if spec is not None else None
        return loader.get_code(self._target) if isinstance(loader, InspectLoader) else None


class _Finder(MetaPathFinder):
    """Finds every module below `horovod`.

    It precedes the path's own finders: the parent of `horovod.torch.mpi_ops` is `hvdtune.torch`, in
    whose directory they would find a second copy of mpi_ops.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        below = fullname.removeprefix("horovod.")
        if below == fullname or _is_own(below):
            return None
        place = "hvdtune." + _MOVED.get(below, below)
        if (below in _MOVED or below.partition(".")[0] in _PACKAGES) and _exists(place):
            return spec_from_loader(fullname, _Loader(place))
        raise _absent.missing(fullname)


def _is_own(below: str) -> bool:
    """Whether a module is a file of this directory, which the ordinary finders find."""
    path = os.path.join(_FOLDER, *below.split("."))
    return os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__init__.py"))


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name == "hvdtune":
            raise ModuleNotFoundError(
                f"{__name__} stands for hvdtune here ({__file__}), but hvdtune is not installed "
                f"for {sys.executable}: install it there.",
                name="hvdtune",
            ) from None
        # Its parent is not a package, or is missing; but report a missing third package.
        if error.name is not None and not module.startswith(error.name):
            raise
        return False


def __getattr__(name: str) -> Any:
    # Horovod's own `horovod` imports these two; here they load only on request.
    if name in ("run", "runner"):
        runner = importlib.import_module("horovod.runner")
        return runner if name == "runner" else runner.run
    _absent.refuse(__name__, name)


sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != __name__]
sys.meta_path.insert(0, _Finder())
