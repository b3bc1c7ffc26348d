"""Functions that differ by Keras' backend: one file each, loaded if Keras uses that backend.

Each file knows its backend's face, but no other part of Keras' face.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol, cast

from hvdtune.core.process_sets import ProcessSet
from hvdtune.keras.package import backend_name

_KNOWN = ("tensorflow", "torch", "jax")


class Backend(Protocol):
    """The functions of a backend's file, on that backend's tensors."""

    def tensor(self, value: Any) -> Any:
        """`value` (a number, a list, an array, a tensor, a variable) as a tensor."""

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """`tensor` in another dtype, given as the backend's own object or as a name."""

    def is_floating(self, tensor: Any) -> bool:
        """Whether its dtype is a floating-point one."""

    def is_sparse(self, gradient: Any) -> bool:
        """Whether it can be reduced as a sparse gradient."""

    def dense(self, gradient: Any) -> Any:
        """A gradient of any kind as a dense tensor."""

    def divided(self, gradient: Any, divisor: int) -> Any:
        """The quotient: sparse if `gradient` can be reduced as a sparse one, else dense."""

    def is_traced(self, tensor: Any) -> bool:
        """Whether this Python code runs once for many steps: the tensor has no values."""

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        name: str,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> list[Any]:
        """Reduce dense tensors, of any dtypes and shapes, together."""

    def sparse_allreduce(
        self, gradients: Sequence[Any], name: str, op: int, process_set: ProcessSet
    ) -> list[Any]:
        """The entries of all ranks for each; for Average, divided by the number of ranks."""

    def allreduce(
        self,
        tensor: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
    ) -> Any:
        """Reduce `tensor` over all ranks; differentiable."""

    def allgather(self, tensor: Any, name: str | None) -> Any:
        """Join the tensors of all ranks."""

    def broadcast(self, tensor: Any, root_rank: int, name: str | None) -> Any:
        """The tensor of `root_rank`."""

    def reducescatter(self, tensor: Any, name: str | None, op: int) -> Any:
        """Reduce `tensor` over all ranks; this rank's share of the rows."""


@cache
def current() -> Backend:
    """The backend that Keras uses. Raises ValueError if hvdtune does not support it."""
    name = backend_name()
    if name not in _KNOWN:
        raise ValueError(
            f"hvdtune.keras works with the backends {', '.join(_KNOWN)}, not with {name!r}; "
            "choose one with KERAS_BACKEND."
        )
    return cast(Backend, importlib.import_module(f"hvdtune.keras.backends.{name}"))
