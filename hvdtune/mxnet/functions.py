"""Makes ranks equal: parameters, and any Python object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict
from mxnet.ndarray import NDArray

from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.world import size
from hvdtune.faces.broadcast import checked_parameters
from hvdtune.mxnet.adapter import code_of
from hvdtune.mxnet.mpi_ops import broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | ParameterDict, root_rank: int = 0, prefix: str | None = None
) -> None:
    """Make the parameters of all ranks equal to those of global rank ``root_rank``, in place.

    ``params``: a dict or ParameterDict of Parameters or NDArrays, as ``Block.collect_params()`` and
    ``Module.get_params()`` return it, with the same names on all ranks. A parameter of unknown
    shape is broadcast when it is initialised, in the first forward pass, which all ranks must run.
    Returns before the values have arrived; reading them waits. ``prefix``: for the names of calls
    that overlap. Does nothing in a job of one process.

    Raises ValueError on every rank for other values, and if the ranks' names differ. If types or
    shapes differ, reading the values raises MXNetError.
    """
    if not isinstance(params, Mapping | ParameterDict):
        raise ValueError(
            f"invalid params of type: {type(params)}; broadcast_parameters takes a dict or "
            "ParameterDict of Parameters or NDArrays."
        )
    if size() == 1:
        return
    start = "" if prefix is None else str(prefix)
    for name, value in checked_parameters(dict(params.items()), NDArray, _check):
        if isinstance(value, NDArray):
            broadcast_(value, root_rank, f"{start}{name}")
            continue
        try:
            value.data()
        except DeferredInitializationError:
            _broadcast_later(value, root_rank, f"{start}{name}")
        else:
            _broadcast_values(value, root_rank, f"{start}{name}")


def _check(what: str, value: Any) -> None:
    if isinstance(value, NDArray):
        code_of(value, "broadcast_parameters")
    elif not isinstance(value, Parameter):
        raise ValueError(f"{what} is a {type(value).__name__}, not a Parameter or an NDArray.")


def _broadcast_values(parameter: Parameter, root_rank: int, name: str) -> None:
    first, *others = parameter.list_data()  # one for each device
    broadcast_(first, root_rank, name)
    for other in others:
        first.copyto(other)


def _broadcast_later(parameter: Parameter, root_rank: int, name: str) -> None:
    """Broadcast the values as soon as the parameter has some."""
    initialise = parameter._init_impl

    def initialise_and_broadcast(*arguments: Any) -> None:
        parameter._init_impl = initialise
        initialise(*arguments)
        _broadcast_values(parameter, root_rank, name)

    parameter._init_impl = initialise_and_broadcast
