"""``torch.compile`` calls this package as it is, and compiles nothing of it.

A collective is what the ranks do together in the engine: a graph cannot have it. Where a compiled
function calls one, its graph ends, and another one begins behind the call; with ``fullgraph=True``
the compiler refuses, and says why. The hooks that hand over gradients run as they always do.
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
    "the ranks do it together in hvdtune's engine, which a graph cannot have; leave out "
    "fullgraph=True, or call it outside of the compiled function"
)


def leave_alone(functions: Iterable[Any]) -> None:
    """Let the compiler end its graphs at calls of ``functions``, and never compile the package.

    Calls cost what they did: the compiler alone looks at these marks. It is not imported here,
    which would take long; where that is yet to come, it is told then.
    """
    for function in functions:
        # What torch.compiler.disable leaves on its wrappers.
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
    except (ImportError, AttributeError):  # another PyTorch: the marks alone have to do
        return


class _CompilerFinder(MetaPathFinder):
    """Finds the compiler, once, and has it told when it is there."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Nothing, but for the compiler."""
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
