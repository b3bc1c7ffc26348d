"""Hooks on parameters, which live as long as the parameters unless removed."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

from hvdtune.torch.optimizer.submission import Member, Unit


def unless_gone(method: weakref.WeakMethod[Callable[[Member], None]]) -> Callable[[Member], None]:
    """What hooks call that have more to do than to note a gradient: the method, while it lives."""

    def on_gradient(member: Member) -> None:
        alive = method()
        if alive is not None:
            alive(member)

    return on_gradient


def remove_all(hooks: list[RemovableHandle]) -> None:
    """Remove the hooks and empty the list."""
    for hook in hooks:
        hook.remove()
    hooks.clear()


def take_apart(hooks: list[RemovableHandle], units: dict[Unit, None]) -> None:
    """Remove the hooks; the units and their members no longer know each other."""
    remove_all(hooks)
    for unit in units:
        unit.members.clear()
