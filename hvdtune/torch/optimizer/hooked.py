"""What reducers have in common that hooks on parameters drive: submit, wait, store the results.

``GradientReducer`` reduces all parameters of an optimizer, on which the ranks have agreed
beforehand. Lightning's ``GradientAverager`` reduces those that a backward pass of any rank has
reached.
"""

from __future__ import annotations

import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvdtune.core.hooks import StepState
from hvdtune.torch.optimizer.parameter_names import Names
from hvdtune.torch.optimizer.sending import Sender, Settings, zeros_for
from hvdtune.torch.optimizer.submission import NAMED_ERRORS, Member, Submission, Unit, named
from hvdtune.torch.optimizer.watched import WatchedParameters


class HookedReducer(ABC):
    """The watched parameters, and the reductions under way in the current step.

    ``names`` are the parameters' own. Parameters do not keep a reducer alive.
    """

    # How a program can change gradients without spoiling a reduction; completes a warning.
    _way_to_change: str

    def __init__(self, names: Names, settings: Settings) -> None:
        self.settings = settings
        self._sender = Sender(settings)
        self._step = StepState(
            torch.is_grad_enabled, _unless_gone(weakref.WeakMethod(self._on_gradient))
        )
        self._watched = WatchedParameters(names, self._sender, self._step)
        self._submissions: dict[Unit, Submission] = {}
        self._warned_of_change = False

    @property
    def names(self) -> Names:
        """The parameters' own names."""
        return self._watched.names

    @property
    def members(self) -> dict[torch.Tensor, Member]:
        """What is known of each parameter that is watched."""
        return self._watched.members

    @abstractmethod
    def _on_gradient(self, member: Member) -> None:
        """Runs in the backward pass when the gradient of a parameter is complete.

        A hook that only has to note the gradient does that by itself and does not call this.
        """

    def _start(self, unit: Unit, members: Sequence[Member]) -> None:
        """Start reducing the gradients of these members of ``unit``."""
        try:
            if unit.grouped:
                payloads = [self._payload(member) for member in members]
                self._submissions[unit] = self._sender.group(members, payloads)
            else:
                member = members[0]
                self._submissions[unit] = self._sender.single(member, self._payload(member))
        except NAMED_ERRORS as error:
            raise named(error, members) from error

    def _payload(self, member: Member) -> torch.Tensor:
        """The tensor to reduce: the gradient, or zeros if this rank did not compute it."""
        gradient = member.parameter.grad
        if gradient is None:
            # Another rank may have one, because control flow may depend on the data.
            gradient = zeros_for(member.parameter, member.layout)
            member.parameter.grad = gradient
            member.filler = weakref.ref(gradient)
        return gradient

    def _collect(self) -> None:
        """Wait for all reductions and store their results; raise the first error at the end."""
        first_error: Exception | None = None
        # Wait for the last one first: a blocked wait makes the engine close its batch, and all
        # earlier submissions can then share that batch.
        for unit in reversed(list(self._submissions)):
            submission = self._submissions[unit]
            try:
                self._store_all(submission)
            except NAMED_ERRORS as error:
                first_error = first_error or named(error, submission.members)
            del self._submissions[unit]
        if first_error is not None:
            raise first_error

    def _store_all(self, submission: Submission) -> None:
        results = submission.results()
        for index, member in enumerate(submission.members):
            payload, result = submission.payloads[index], results[index]
            if payload is member.parameter.grad:
                if payload._version != submission.versions[index]:
                    self._warn_changed(member)
                if result is payload and not self._sender.compresses:
                    continue
            self._store(member, result, submission.contexts[index])

    def _store(self, member: Member, result: torch.Tensor, context: Any) -> None:
        """Make the reduced tensor the gradient of the parameter."""
        parameter = member.parameter
        gradient = parameter.grad
        if result.is_sparse:
            parameter.grad = result
            return
        restored = self.settings.compression.decompress(result, context)
        if gradient is None:  # the user has removed it
            parameter.grad = restored
        elif gradient.is_sparse:
            parameter.grad = restored.to_sparse(gradient.sparse_dim())
        elif restored.data_ptr() != gradient.data_ptr():
            gradient.detach().copy_(restored)

    def _warn_changed(self, member: Member) -> None:
        # Views share a version counter, so a change to any of them looks like a change to this one.
        if self._warned_of_change or is_view(member.parameter.grad):
            return
        self._warned_of_change = True
        warnings.warn(
            f"The gradient of parameter {member.name!r} was changed while it was being reduced, "
            f"which loses the change or spoils the result. {self._way_to_change} "
            "(Further parameters are not reported.)",
            RuntimeWarning,
            stacklevel=2,
        )


def is_view(gradient: torch.Tensor | None) -> bool:
    """Whether it uses the memory of another tensor."""
    return gradient is not None and gradient._is_view()


def _unless_gone(method: weakref.WeakMethod[Callable[[Member], None]]) -> Callable[[Member], None]:
    """A function for hooks that calls the method while its object lives, and else does nothing."""

    def on_gradient(member: Member) -> None:
        alive = method()
        if alive is not None:
            alive(member)

    return on_gradient
