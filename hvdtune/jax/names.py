"""Whether a function is being traced, and names for its calls that were given none.

Names are counted within the innermost function that is traced ("jit.train_step.1"), regardless of
what was traced before: so all ranks find the same names, even if one traces a function again.
Two functions may use the same name, because their calls never run at the same time.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from jax._src import core
from jax._src.interpreters import partial_eval

_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def is_plain() -> bool:
    """Whether nothing is traced or differentiated, so that values are known."""
    return isinstance(core.trace_ctx.trace, core.EvalTrace)


def is_staged() -> bool:
    """Whether a function is being traced, as in `jax.jit`, so that values are known only later."""
    return _staging_trace() is not None


def name_of(given: str | None, operation: str) -> str | None:
    """The name of a call: `given`, else an automatic one in a traced function, else None."""
    trace = _staging_trace()
    if given is not None or trace is None:
        return given
    function = _function_of(trace)
    counts = _counts.setdefault(trace, Counter())
    counts[operation] += 1
    return f"jit.{function}.{counts[operation]}"


def _staging_trace() -> Any:
    trace = core.trace_ctx.trace
    while trace is not None and not isinstance(trace, partial_eval.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def _function_of(trace: Any) -> str:
    info = getattr(getattr(trace, "frame", None), "debug_info", None)
    return getattr(info, "func_name", None) or "function"
