"""DistributedOptimizer with op=Adasum: combines the ranks' steps, not their gradients.

When the gradient of a parameter is complete, the wrapped optimizer takes its step for that
parameter alone. The parameter is then restored, and Adasum combines the difference, its *delta*,
over the ranks while the backward pass goes on. ``step()`` adds the combined delta:

    w  ←  w + adasum over ranks (step_of_this_rank(w) - w)

So every rank's optimizer state (momentum, say) follows that rank's own gradients, and momentum or
Adam's normalisation is applied before ranks are combined, not after.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import _unsafe_preserve_version_counter

from hvdtune.core import operations
from hvdtune.core.process_sets import ProcessSet
from hvdtune.torch.optimizer.parameter_names import Names
from hvdtune.torch.optimizer.reducer import Copied, GradientReducer
from hvdtune.torch.optimizer.sending import Settings
from hvdtune.torch.optimizer.submission import Member
from hvdtune.torch.optimizer.wrapping import DistributedBase
from hvdtune.torch.phases import step_ended

_delta_hooks: list[Callable[[], None]] = []


def add_delta_hook(hook: Callable[[], None]) -> None:
    """Call ``hook`` before every step that is taken for one parameter in a backward pass.

    torch's hooks on steps are called only when the program calls ``step()``.
    """
    _delta_hooks.append(hook)


def check_adasum(optimizer: torch.optim.Optimizer, process_set: ProcessSet) -> None:
    """Raise unless the ranks and ``optimizer`` can do Adasum.

    NotImplementedError: for a process set, or if the number of ranks is not a power of two.
    ValueError: for an optimizer whose step needs a closure and so cannot run in a backward pass.
    """
    operations.check_adasum(process_set)
    parameters = inspect.signature(type(optimizer).step).parameters
    closure = parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"op=Adasum takes a step for every parameter during the backward pass, and "
            f"{type(optimizer).__name__}.step() cannot do without a closure."
        )


class DeltaReducer(GradientReducer):
    """Submits what the wrapped optimizer would add to a parameter, and adds the result."""

    def __init__(
        self, optimizer: DeltaMixin, names: Names, settings: Settings, passes: int
    ) -> None:
        # Deltas are dense, even if gradients are sparse.
        settings = replace(settings, sparse_as_dense=True)
        self._optimizer = weakref.ref(optimizer)  # it owns this object
        super().__init__(
            optimizer.param_groups,
            names,
            settings,
            backward_passes_per_step=passes,
            kind=type(optimizer).__name__,
        )

    def copy_with(self, copied: Copied, owner: Any) -> GradientReducer:
        """A reducer that does the same for the copied parameters of ``owner``."""
        twin = super().copy_with(copied, owner)
        assert isinstance(twin, DeltaReducer)
        twin._optimizer = weakref.ref(owner)
        return twin

    def _payload(self, member: Member) -> torch.Tensor:
        optimizer = self._optimizer()
        assert optimizer is not None  # its hooks are removed with it
        return optimizer._delta_of(member.parameter)

    def _store(self, member: Member, result: torch.Tensor, context: Any) -> None:
        delta = self.settings.compression.decompress(result, context)
        with torch.no_grad():
            member.parameter.add_(delta)


class DeltaMixin(DistributedBase):
    """The methods that ``DistributedOptimizer`` with op=Adasum puts before the wrapped ones."""

    def synchronize(self) -> None:
        """Does nothing: there are no reduced gradients to look at. ``step()`` does all the work."""

    def skip_synchronize(self) -> Any:
        """Raises AssertionError: steps are already taken when the gradients are known."""
        raise AssertionError(
            "optimizer.skip_synchronize() is not supported with op=Adasum: the wrapped optimizer's "
            "step is taken during the backward pass, and there is nothing to skip."
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Add to every parameter the combined steps of the ranks.

        Raises HorovodInternalError when the ranks disagree or a rank is gone.
        """
        self._tell_wrapped()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._reducer.synchronize(self.param_groups)
        self._tell_others()
        step_ended(self)
        return loss

    def _delta_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """What the wrapped optimizer's step would add to ``parameter``, which stays as it is."""
        if parameter.grad is None:
            return torch.zeros_like(parameter.detach())
        for hook in _delta_hooks:
            hook()
        everything = self.param_groups
        [group] = [g for g in everything if any(p is parameter for p in g["params"])]
        members = group["params"]
        start = parameter.detach().clone()
        # The graph may still need the parameter and must not notice a change.
        with torch.no_grad(), _unsafe_preserve_version_counter(parameter):
            try:
                self.param_groups, group["params"] = [group], [parameter]
                _without_hooks(self._wrapped_class.step)(self)
                delta = parameter.detach() - start
            finally:
                self.param_groups, group["params"] = everything, members
                parameter.copy_(start)
        return delta


def _without_hooks(step: Any) -> Any:
    """An optimizer class's step without torch's wrapper that runs the hooks on steps."""
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step
