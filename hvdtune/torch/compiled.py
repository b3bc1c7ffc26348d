"""Makes ``torch.compile`` call this package as it is and compile nothing of it.

A graph cannot contain a collective, which the ranks perform together in the engine. If a compiled
function calls one, its graph ends there and another one begins after the call; with
``fullgraph=True`` the compiler refuses and says why. The hooks that submit gradients run as usual.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_COMPILER = "torch._dynamo"
_REASON = (
    "the ranks perform it together in hvdtune's engine, so a graph cannot contain it; leave out "
    "fullgraph=True, or call it outside the compiled function"
)


def leave_alone(functions: Iterable[Any]) -> None:
    """Make the compiler end its graphs at calls of ``functions``, and never compile the package.

    Ordinary calls cost nothing extra: only the compiler looks at these marks. This does not
    import the compiler, which takes long; `_CompilerFinder` tells it when it is imported.
    """
    for function in functions:
        # The marks that torch.compiler.disable puts on its wrappers.
        marked = getattr(function, "__func__", function)
        marked._torchdynamo_disable = True
        marked._torchdynamo_disable_msg = _REASON
    if _COMPILER in sys.modules:
        _skip_package()
    else:
        sys.meta_path.insert(0, _CompilerFinder())


def _skip_package() -> None:
    try:
        from torch._dynamo import trace_rules

        trace_rules.add(_PACKAGE)
    except (ImportError, AttributeError):  # another PyTorch version: the marks must suffice
        return


class _CompilerFinder(MetaPathFinder):
    """Finds the compiler when it is imported, once, and then calls `_skip_package`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """None, except for the compiler."""
        if fullname != _COMPILER or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        @functools.wraps(execute)
        def and_tell(module: types.ModuleType) -> None:
            execute(module)
            _skip_package()

        spec.loader.exec_module = and_tell  # type: ignore[method-assign]
        return spec
