"""State that one rank sends to all: a tree of containers with tensors in it.

The sender packs it: placeholders stand for the tensors, which follow as separate broadcasts,
named `<name>.<occurrence>`. A receiver fills the received tree with tensors for these broadcasts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """Stands for a tensor; its values follow under the name `key`.

    `device_type`: the kind of device on which the sender has it, such as "cpu".
    """

    shape: tuple[int, ...]
    dtype: Any
    device_type: str
    key: str


class Packing:
    """Packs state, and collects the tensors that follow it in `tensors`, by their keys.

    `is_sendable`: whether a value is a tensor that a broadcast takes; all else is sent as it is.
    """

    def __init__(self, is_sendable: Callable[[Any], bool]) -> None:
        self.tensors: dict[str, Any] = {}
        self._is_sendable = is_sendable
        self._occurrences: Counter[str] = Counter()

    def pack(self, state: Any) -> Any:
        """The state of one parameter: a mapping of names to values, or a single value."""
        if not isinstance(state, Mapping):
            return self._place(state, "state")
        return {name: self._place(value, str(name)) for name, value in state.items()}

    def _place(self, value: Any, name: str) -> Any:
        if self._is_sendable(value):
            self._occurrences[name] += 1
            key = f"{name}.{self._occurrences[name]}"
            self.tensors[key] = value
            return Place(tuple(value.shape), value.dtype, value.device.type, key)
        return _rebuilt(value, lambda item: self._place(item, name))


class Filling:
    """Unpacks state, and collects the tensors yet to be filled in `tensors`, by their keys.

    `storage(place, old, owner)` is the tensor that a broadcast fills: `old`, if that fits. `owner`
    is the parameter that the state belongs to, if any.
    """

    def __init__(self, storage: Callable[[Place, Any, Any], Any]) -> None:
        self.tensors: dict[str, Any] = {}
        self._storage = storage

    def fill(self, state: Any, before: Any, owner: Any = None) -> Any:
        """The state that `Packing.pack` packed; `before` is what the receiver had."""
        if not isinstance(state, Mapping):
            return self._take(state, before, owner)
        known = before if isinstance(before, Mapping) else {}
        return {name: self._take(value, known.get(name), owner) for name, value in state.items()}

    def _take(self, value: Any, old: Any, owner: Any) -> Any:
        if isinstance(value, Place):
            self.tensors[value.key] = self._storage(value, old, owner)
            return self.tensors[value.key]
        return _rebuilt(value, lambda item: self._take(item, None, owner))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A dict, list, tuple or deque with `change` applied to its items; anything else as it is."""
    if type(value) is dict:
        return {key: change(item) for key, item in value.items()}
    if type(value) in (list, tuple, deque):
        return type(value)(change(item) for item in value)
    return value
