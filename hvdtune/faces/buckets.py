"""Which parameters of an optimizer are reduced together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hvdtune.core import world
from hvdtune.core.objects import allgather_object
from hvdtune.core.process_sets import ProcessSet

Group = tuple[Any, ...]
# A number of groups, or the groups themselves (parameters in no group stay alone).
Groups = int | Sequence[Sequence[Any]]


def check_groups(groups: Groups | None, tensor: Any, called: str) -> None:
    """Raise ValueError unless ``groups`` is None, a positive number or lists of tensors.

    ``tensor`` is the framework's class of tensors, and ``called`` its name in messages.
    """
    if groups is None:
        return
    if isinstance(groups, int):
        if groups <= 0 or isinstance(groups, bool):
            raise ValueError(
                f"groups should be a positive integer or a list of lists of tensors, not {groups}."
            )
        return
    if isinstance(groups, tensor | str) or not isinstance(groups, Sequence):
        raise ValueError(
            "groups should be a positive integer or a list of lists of tensors, "
            f"not a {type(groups).__name__}."
        )
    seen: set[int] = set()
    for index, group in enumerate(groups):
        if isinstance(group, tensor) or not isinstance(group, Sequence):
            raise ValueError(f"groups[{index}] should be a list of tensors.")
        for parameter in group:
            if not isinstance(parameter, tensor):
                raise ValueError(
                    f"groups[{index}] must consist of {called}, not {type(parameter).__name__}."
                )
            if id(parameter) in seen:
                raise ValueError(
                    f"A parameter can only appear once in groups; groups[{index}] repeats one of "
                    f"shape {tuple(parameter.shape)}."
                )
            seen.add(id(parameter))


def form_groups(groups: Groups, names: Mapping[Any, str], process_set: ProcessSet) -> list[Group]:
    """The groups, equal on all ranks of the set: its first rank gives the order of parameters.

    ``names`` has the parameters to group (those that require gradients), in this rank's order.
    Collective. Raises ValueError, on all ranks, if their parameters have different names. A process
    that will join a running job, which has agreed on this already, uses its own order.
    """
    by_name = {name: parameter for parameter, name in names.items()}
    assert process_set.ranks
    if world.is_expected():
        every = [list(by_name)] * len(process_set.ranks)
    else:
        every = allgather_object(list(by_name), name="optimizer.groups", process_set=process_set)
    for rank, others in zip(process_set.ranks, every, strict=True):
        if set(others) != set(every[0]):
            different = ", ".join(sorted(set(others) ^ set(every[0]))[:5])
            raise ValueError(
                f"groups: ranks {process_set.ranks[0]} and {rank} have different parameters that "
                f"require gradients: {different}."
            )
    parameters = [by_name[name] for name in every[0]]
    if isinstance(groups, int):
        return [tuple(part) for part in split_evenly(parameters, groups)]
    formed = [tuple(p for p in group if p in names) for group in groups]
    grouped = {parameter for group in formed for parameter in group}
    formed.extend((parameter,) for parameter in parameters if parameter not in grouped)
    return [group for group in formed if group]


def split_evenly(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """``items`` in at most ``parts`` runs whose lengths differ by at most one; none is empty."""
    parts = min(parts, len(items))
    bounds = [len(items) * part // parts for part in range(parts + 1)] if parts else [0]
    return [items[start:end] for start, end in pairwise(bounds)]
