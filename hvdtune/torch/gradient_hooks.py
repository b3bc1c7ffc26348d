"""The end of hooks on parameters, which live as long as the parameters unless removed."""

from __future__ import annotations

from torch.utils.hooks import RemovableHandle


def remove_all(hooks: list[RemovableHandle]) -> None:
    """Remove the hooks and empty the list."""
    for hook in hooks:
        hook.remove()
    hooks.clear()
