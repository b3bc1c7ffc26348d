"""Making named tensors of all ranks equal to those of one, as `broadcast_parameters` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hvdtune.core.objects import allgather_object

Named = tuple[str | None, Any]  # a tensor and its name
Finisher = Callable[[], None]  # waits for one tensor


def checked_parameters(params: Any, tensor: type, check: Callable[[str, Any], None]) -> list[Named]:
    """The pairs of `params`: a mapping, or an iterable of tensors or (name, tensor) pairs.

    `check(what, tensor)` raises ValueError, beginning with `what`, for a tensor that cannot be
    broadcast; `tensor` is the framework's class of tensors. Collective over all ranks. Raises
    ValueError on every rank, naming the rank and the parameter, if `check` refuses a tensor, if a
    name is given twice, and if the ranks' names differ.
    """
    named, fault = _checked(params, tensor, check)
    names = Counter(name for name, _ in named)
    every = allgather_object((fault, names), name="broadcast_parameters")
    faults = [f"on rank {other}: {text}" for other, (text, _) in enumerate(every) if text]
    if faults:
        raise ValueError(fault or f"broadcast_parameters {faults[0]}")
    _check_equal([others for _, others in every])
    return named


def finish_all(finishers: Sequence[Finisher]) -> None:
    """Wait for all of them, even if some fail; the first error is raised."""
    first_error: Exception | None = None
    # The last one first: when it has finished, all others have been submitted.
    for finish in reversed(finishers):
        try:
            finish()
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _checked(
    params: Any, tensor: type, check: Callable[[str, Any], None]
) -> tuple[list[Named], str | None]:
    """The pairs of `params`, and what is wrong with this rank's, if anything."""
    try:
        named = _named_tensors(params, tensor)
        for index, (name, value) in enumerate(named):
            check(f"Parameter {index if name is None else repr(name)}", value)
    except ValueError as error:
        return [], str(error)
    return named, None


def _named_tensors(params: Any, tensor: type) -> list[Named]:
    """`params` of any accepted form as (name or None, tensor) pairs."""
    if isinstance(params, Mapping):
        # Dictionaries of the same content may differ in order.
        pairs = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, tensor | str) or not isinstance(params, Iterable):
        raise ValueError(
            f"invalid params of type: {type(params)}; broadcast_parameters takes a state_dict, "
            "or an iterable of tensors or (name, tensor) pairs."
        )
    else:
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"broadcast_parameters takes pairs (name, tensor), not {pair!r}.")
    named = [(None if name is None else str(name), value) for name, value in pairs]
    counts = Counter(name for name, _ in named if name is not None)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(f"Parameter names must be different; given twice: {', '.join(repeated)}.")
    return named


def _check_equal(every: list[Counter[str | None]]) -> None:
    """Raise ValueError, on all ranks, unless all ranks have tensors of the same names."""
    for other, names in enumerate(every):
        if names[None] != every[0][None]:
            raise ValueError(
                f"broadcast_parameters: rank {other} has {names[None]} tensors without a name, "
                f"rank 0 has {every[0][None]}; they must be equal."
            )
        for has, lacks, name in [
            *((other, 0, name) for name in names - every[0]),
            *((0, other, name) for name in every[0] - names),
        ]:
            raise ValueError(
                f"broadcast_parameters: rank {has} has a parameter {name!r}, rank {lacks} has "
                "not; all ranks pass the same parameters."
            )
