"""Being told when the gradient of a parameter is complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# The handle that removes the hook, and what must live as long as it.
Hook = tuple[Any, Any]


def after_gradient(parameter: torch.Tensor, callback: Callable[..., None]) -> Hook:
    """Call ``callback`` in every backward pass once the pass has added its part to the gradient.

    What arguments it gets depends on the version of torch.
    """
    node: Any = parameter
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return node.register_post_accumulate_grad_hook(callback), node
    # Before torch 2.1: the graph node that accumulates, which lives as long as somebody holds it.
    with torch.enable_grad():
        view: Any = parameter.expand_as(parameter)
    node = view.grad_fn.next_functions[0][0]
    return node.register_hook(callback), node


def remove_all(hooks: list[Hook]) -> None:
    """Remove the hooks and empty the list."""
    for handle, _ in hooks:
        handle.remove()
    hooks.clear()
