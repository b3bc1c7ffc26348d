"""Whether a function is being traced, and what calls in it are called that were given no name.

Names are counted within the innermost function that is traced ("jit.train_step.1"), whatever else
has been traced before: all ranks find the same, although one may trace a function again that others
have not. Two functions may use one name, because their calls never run at the same time.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from jax._src import core
from jax._src.interpreters import partial_eval

_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def is_plain() -> bool:
    """Whether nothing is traced or differentiated: values are known, and nobody looks back."""
    return isinstance(core.trace_ctx.trace, core.EvalTrace)


def is_staged() -> bool:
    """Whether a function is being traced whose values are known only later, as in `jax.jit`."""
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
