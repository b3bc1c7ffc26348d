"""The methods that a face defines for its tensors, so that the rest can be written once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from hvdtune.core.operations import Buffer

T = TypeVar("T")


class Adapter(Protocol[T]):
    """A framework's tensors as the engine takes and returns them."""

    codes: dict[Any, int]
    """The engine's dtype code of each dtype object that tensors may have."""

    def buffer(self, tensor: T, operation: str, *, written: bool = False) -> Buffer:
        """The tensor's memory, kept alive by the buffer.

        `written`: the engine writes it. `operation` is for messages. Raises ValueError or
        TypeError, with a sentence for the user, if the engine cannot use the tensor.
        """

    def fresh(self, tensor: T, rows: int | None = None) -> T:
        """An uninitialised tensor of the type and shape of `tensor`, or with `rows` rows."""

    def result(self, tensor: T, output: Any) -> T:
        """An output that the engine allocated, as a tensor of the dtype of `tensor`."""

    def plain_output(self, tensor: T) -> T | None:
        """`fresh` for a tensor that is dense, contiguous and in host memory; None for any other."""

    def members(self, tensors: Iterable[T], operation: str) -> list[T]:
        """The tensors of a group. May raise ValueError or TypeError if `tensors` is no group."""

    def splits(self, splits: Any) -> list[int] | None:
        """The rows for each receiver of an alltoall. Raises ValueError, TypeError."""

    def received(self, splits: Any, counts: Sequence[int]) -> T:
        """The rows from each sender, as the face returns them: an int32 tensor."""
