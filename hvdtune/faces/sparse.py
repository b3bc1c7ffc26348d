"""Reducing sparse tensors: every rank gets the entries of all, in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable

from hvdtune.core.operations import synchronize
from hvdtune.core.process_sets import ProcessSet
from hvdtune.faces.adapter import T
from hvdtune.faces.collectives import Collectives


def start(
    collectives: Collectives[T], indices: T, values: T, name: str, process_set: ProcessSet
) -> Callable[[], tuple[T, T]]:
    """Start gathering entries: `indices` and `values` have one row for each.

    Returns a function that waits for both and returns the indices and values of all ranks; values
    with the same index are not added up.
    """
    indices_handle = collectives.allgather_async(indices, f"{name}.indices", process_set)
    values_handle = collectives.allgather_async(values, f"{name}.values", process_set)

    def wait() -> tuple[T, T]:
        try:
            all_values = synchronize(values_handle)
        finally:
            all_indices = synchronize(indices_handle)
        return all_indices, all_values

    return wait
