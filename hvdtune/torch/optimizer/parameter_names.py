"""The names of an optimizer's parameters: those that the user gave, and those that are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from hvdtune.faces.wire_names import WireNames

Names = dict[torch.Tensor, str]

wire_names = WireNames(WeakTensorKeyDictionary())


def default_name(group: int, index: int) -> str:
    """The name of a parameter that the user did not name."""
    return f"allreduce.noname.{group}.{index}"


def parameter_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> Names:
    """The name of every parameter of ``optimizer``, in the order of names if they were given.

    Raises ValueError for anything but pairs of a string and a tensor, for a repeated name and for
    a parameter without one.
    """
    own = {
        parameter: default_name(i, j)
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return own
    pairs = list(named_parameters)
    for pair in pairs:
        _check_pair(pair)
    counts = Counter(name for name, _ in pairs)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(
            "Parameter names in named_parameters must be unique. "
            f"Found duplicates: {', '.join(repeated)}."
        )
    named = {parameter: name for name, parameter in sorted(pairs, key=lambda pair: pair[0])}
    unnamed = [
        f"{position.removeprefix('allreduce.noname.')} of shape {tuple(parameter.shape)}"
        for parameter, position in own.items()
        if parameter not in named
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"By parameter group and index: {', '.join(unnamed[:5])}"
            f"{' …' if len(unnamed) > 5 else ''}."
        )
    return {parameter: name for parameter, name in named.items() if parameter in own}


def _check_pair(pair: object) -> None:
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), as "
            f"model.named_parameters() gives it; it has a {type(pair).__name__}."
        )
    name, parameter = pair
    if not (isinstance(name, str) and isinstance(parameter, torch.Tensor)):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter) of a string and a "
            f"tensor; it has ({type(name).__name__}, {type(parameter).__name__})."
        )
