"""Tells the recording how a rank spends its time: input, forward and backward pass, update.

Programs need no changes. While this rank records, hooks are on what every PyTorch program calls:
a DataLoader's iterator, modules, ``torch.autograd.backward``, optimizers' steps, ``torch.save``.
No hook is on a model itself, so copies and pickles of models are unaffected. The hook on modules
is there only until the forward pass has begun. Only the main thread's phases are recorded.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from hvdtune.core import job, world
from hvdtune.core.observation import marks

INPUT, FORWARD, BACKWARD, UPDATE = "input", "forward", "backward", "update"
EVALUATION, CHECKPOINT = "evaluation", "checkpoint"
#: Functions whose calls are a phase: owner, name, phase.
_CALLS: tuple[tuple[Any, str, str], ...] = (
    (dataloader.DataLoader, "__iter__", INPUT),
    (dataloader._BaseDataLoaderIter, "__next__", INPUT),
    (torch.autograd, "backward", BACKWARD),
    (torch, "save", CHECKPOINT),
)


class PhaseHooks:
    """The hooks of one recording.

    A forward pass begins with the first module that is called, and ends when the backward pass,
    the update or the next input begins. One without gradients counts as an evaluation.
    """

    def __init__(self) -> None:
        self._thread = threading.main_thread().ident
        self._inside = 0  # depth of calls of _CALLS: modules called inside belong to their phase
        self._open = ""  # FORWARD or EVALUATION, while it goes on
        self._spans_left = 0  # marks.spans_left when that began
        self._removed = False
        self._originals: list[tuple[Any, str, Any, Any]] = []
        self._compiles = _compiles()
        for owner, name, phase in _CALLS:
            self._replace(owner, name, self._lasting(phase, getattr(owner, name)))
        self._replace(torch, "compile", self._compiling(torch.compile))
        self._module_hook = register_module_forward_pre_hook(self._on_module)
        self._forget_modules()
        self._handles: list[RemovableHandle] = [
            optimizers.register_optimizer_step_pre_hook(self._before_update),
            optimizers.register_optimizer_step_post_hook(self._after_update),
        ]
        self._watch_modules()

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        self._originals.append((owner, name, getattr(owner, name), by))
        setattr(owner, name, by)

    def remove(self) -> None:
        """Undo everything. Wrappers that others have wrapped in turn stay, but do nothing more."""
        self._removed = True
        for owner, name, original, by in self._originals:
            if getattr(owner, name) is by:
                setattr(owner, name, original)
        for handle in (self._module_hook, *self._handles):
            handle.remove()

    # ---- messages to the recording ----

    def _tell(self, phase: str, value: int) -> None:
        engine = world.running.engine
        if engine is not None:
            engine.mark(marks.PHASE, value, phase)

    def _begin(self, phase: str) -> None:
        self._tell(phase, 2 if torch.cuda.is_initialized() else 1)

    def _close(self) -> None:
        """End the current forward pass or evaluation, if there is one."""
        if self._open:
            self._tell(self._open, 0)
            self._open = ""

    def _is_elsewhere(self) -> bool:
        return self._removed or threading.get_ident() != self._thread

    # ---- hooks ----

    def _lasting(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of ``function`` that records each call as the phase."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._is_elsewhere():
                return function(*args, **kwargs)
            self._close()
            self._inside += 1
            self._begin(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._tell(phase, 0)
                self._inside -= 1
                self._watch_modules()

        return call

    def _compiling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of ``torch.compile`` that removes the hook on modules from then on.

        A graph cannot contain a hook, and is compiled anew when hooks are added or removed.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._removed:
                self._compiles = True
                self._forget_modules()
            return function(*args, **kwargs)

        return call

    def _watch_modules(self) -> None:
        """Wait for the next forward pass."""
        hooks = self._module_hook.hooks_dict_ref()
        if hooks is not None and not self._removed and not self._compiles:
            hooks[self._module_hook.id] = self._on_module

    def _forget_modules(self) -> None:
        hooks = self._module_hook.hooks_dict_ref()
        if hooks is not None:
            hooks.pop(self._module_hook.id, None)

    def _on_module(self, _module: Any, _args: Any) -> None:
        if self._inside or self._is_elsewhere():
            return
        if torch.is_grad_enabled():
            self._forget_modules()
            self._close()
            self._open = FORWARD
            self._begin(FORWARD)
        elif not self._open or self._spans_left != marks.spans_left:
            self._open, self._spans_left = EVALUATION, marks.spans_left
            self._begin(EVALUATION)

    def _before_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._is_elsewhere():
            self._close()
            self._begin(UPDATE)

    def _after_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._is_elsewhere():
            self._close()  # the evaluation in a closure that only computes the loss
            self._tell(UPDATE, 0)
            if not self._inside:
                self._watch_modules()


def _compiles() -> bool:
    """Whether the program has used torch.compile."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(compiler, "cached_backends", {})
    return any(callable(backend) for backend in backends.values())


_hooks: PhaseHooks | None = None


def follow() -> None:
    """Add or remove the hooks, depending on whether this rank records now."""
    global _hooks
    if marks.are_recorded():
        if _hooks is None:
            _hooks = PhaseHooks()
    elif _hooks is not None:
        unfollow()


def unfollow() -> None:
    """Remove the hooks."""
    global _hooks
    if _hooks is not None:
        hooks, _hooks = _hooks, None
        hooks.remove()


#: Tells the recording that an optimizer's step has ended.
step_ended = marks.step_ended
marks.after_each_step(follow)
job.add_lifecycle_hook(follow, unfollow)
# A child process records nothing, and its parent's hooks would look for an engine in it.
os.register_at_fork(after_in_child=unfollow)
