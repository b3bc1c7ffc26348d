"""Makes an optimizer a distributed one; holds what the two kinds of these share.

The distributed optimizer's class derives from the wrapped optimizer's class and has its name, so
that type checks accept it.
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from typing import Any, ClassVar, TypeVar

import torch

from hvdtune.torch.optimizer.reducer import GradientReducer
from hvdtune.torch.phases import follow


class DistributedBase(torch.optim.Optimizer):
    """The methods that every distributed optimizer puts before the wrapped optimizer's."""

    _flags: ClassVar[tuple[str, ...]] = ()  # attributes of this package that copies take over
    _reducer: GradientReducer
    _wrapped_class: type[torch.optim.Optimizer]
    _inner: weakref.ref[torch.optim.Optimizer] | None

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's ``zero_grad``.

        Raises AssertionError between ``backward()`` and ``step()`` or ``synchronize()``: the
        gradients are being reduced then.
        """
        self._reducer.notice_events()
        if self._reducer.is_pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause a "
                "race condition: the gradients are being reduced. "
                + (self._reducer.bystander.advice() or "Call it before backward() or after step().")
            )
        self._reducer.drop_given_up()
        super().zero_grad(*args, **kwargs)

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Horovod's: the name of every parameter."""
        return self._reducer.names

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """Horovod's: the parameters whose gradients are reduced."""
        return set(self._reducer.members)

    @property
    def _compression(self) -> Any:
        """Horovod's: the compressor."""
        return self._reducer.settings.compression

    @property
    def backward_passes_per_step(self) -> int:
        """Over how many backward passes gradients add up."""
        return self._reducer.passes

    def _allreduce_grad_async(self, parameter: torch.Tensor) -> tuple[Any, Any]:
        """Horovod's: start reducing one gradient; the handle and the compressor's context.

        The caller waits for the handle before ``step()``, which reduces the gradient once more.
        Every rank must call it for the same parameters. (None, None) if nothing is reduced.
        """
        return self._reducer.submit_alone(parameter)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce gradients at every ``passes``-th backward pass from now on."""
        self._reducer.set_backward_passes_per_step(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's ``load_state_dict``; gives up reductions that are under way.

        It does not wait for other ranks, which may not have begun them. Without a ``zero_grad()``
        or another backward pass the next ``step()`` still uses their results.
        """
        self._reducer.give_up()
        super().load_state_dict(*args, **kwargs)

    def _tell_others(self) -> None:
        """Tell the optimizers with gradients under way that this one's backward pass began them."""
        self._reducer.bystander.steps()

    def _tell_wrapped(self) -> None:
        """Mark step() as called; learning rate schedules made before wrapping look there."""
        inner = self._inner() if self._inner is not None else None
        if inner is not None:
            inner._opt_called = True  # type: ignore[attr-defined]

    def __copy__(self) -> Any:
        """Another object for the same parameters, state and reductions."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A distributed optimizer for the copied parameters; no other rank needs to copy its own.

        As with any optimizer, hooks are not copied.
        """
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        for name in self._flags:
            setattr(twin, name, getattr(self, name))
        twin._wrapped_class, twin._inner = self._wrapped_class, None
        twin._reducer = self._reducer.copy_with(lambda p: copy.deepcopy(p, memo), twin)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the wrapped kind of optimizer, which any process can load and wrap again."""
        return _unpickle, (self._wrapped_class, self.__getstate__())


def _unpickle(cls: type[torch.optim.Optimizer], state: dict[str, Any]) -> torch.optim.Optimizer:
    optimizer = cls.__new__(cls)
    optimizer.__setstate__(state)
    return optimizer


Mixin = TypeVar("Mixin", bound=DistributedBase)


def wrap(optimizer: torch.optim.Optimizer, mixin: type[Mixin]) -> Mixin:
    """An object of a class between ``mixin`` and the class of ``optimizer``, without a reducer.

    Attributes are copied instead of calling the constructor, which may need arguments that are
    no longer known. The parameter groups are shared, the state is not.
    """
    wrapped = type(optimizer)
    cls: Any = type(wrapped.__name__, (mixin, wrapped), {"__doc__": wrapped.__doc__})
    distributed = cls.__new__(cls)
    for key, value in vars(optimizer).items():
        # A learning rate schedule sets step() on the object; that one calls the wrapped optimizer.
        if key != "step":
            distributed.__dict__[key] = value
    distributed.state = defaultdict(dict)
    distributed._wrapped_class = wrapped
    distributed._inner = weakref.ref(optimizer)
    distributed._patch_step_function()
    follow()
    return distributed
