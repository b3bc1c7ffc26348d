"""The names of parameters on the wire.

There a name means one tensor at a time. Two optimizers of one process, such as the two of a GAN,
may both call a parameter "weight" and reduce it at the same time, so each parameter with that name
has a number there. Ranks agree on the largest number that any of them asks for, because a rank may
have made optimizers that the others have not. Numbers are not reused, because parameters do not
die at the same time on all ranks.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any


class WireNames:
    """The numbers of a process's parameters.

    `taken` must be empty and map parameters by identity; it should not keep them alive.
    """

    def __init__(self, taken: MutableMapping[Any, dict[tuple[int, str], int]]) -> None:
        self._taken = taken  # parameter -> {(process set, name): number}
        self._largest: dict[tuple[int, str], int] = {}

    def number_to_ask_for(self, parameter: Any, name: str, set_id: int) -> int:
        """The number of `parameter` under `name` in a process set, or the next one (from 1)."""
        key = (set_id, name)
        return self._taken.get(parameter, {}).get(key, self._largest.get(key, 0) + 1)

    def take_number(self, parameter: Any, name: str, set_id: int, number: int) -> str:
        """Give `parameter` the number agreed on. Returns its name on the wire."""
        key = (set_id, name)
        self._taken.setdefault(parameter, {})[key] = number
        self._largest[key] = max(number, self._largest.get(key, 0))
        return name if number == 1 else f"{name}#{number}"
