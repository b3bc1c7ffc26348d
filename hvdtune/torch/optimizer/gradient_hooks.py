"""Hooks on parameters. Unless removed, they live as long as the parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

from hvdtune.torch.optimizer.submission import Member, Unit


def unless_gone(method: weakref.WeakMethod[Callable[[Member], None]]) -> Callable[[Member], None]:
    """A function for hooks that calls the method while its object lives, and else does nothing."""

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
    """Remove the hooks, and the references between units and their members."""
    remove_all(hooks)
    for unit in units:
        unit.members.clear()
