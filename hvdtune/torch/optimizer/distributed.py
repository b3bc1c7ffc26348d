"""``DistributedOptimizer``: reduces gradients over the ranks while the backward pass runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of
from hvdtune.core.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from hvdtune.core.world import size
from hvdtune.faces.buckets import Groups, check_groups
from hvdtune.torch.compression import Compression
from hvdtune.torch.optimizer import description
from hvdtune.torch.optimizer.adasum import DeltaMixin, DeltaReducer, check_adasum
from hvdtune.torch.optimizer.parameter_names import parameter_names
from hvdtune.torch.optimizer.reducer import GradientReducer
from hvdtune.torch.optimizer.sending import Settings
from hvdtune.torch.optimizer.wrapping import DistributedBase, wrap
from hvdtune.torch.phases import step_ended

_OPS = {Average, Sum, Adasum, Min, Max, Product}


class GradientMixin(DistributedBase):
    """The methods that ``DistributedOptimizer`` puts before the wrapped optimizer's."""

    _flags = ("_synchronized", "_synchronized_for_scaler", "_should_synchronize")
    _synchronized: bool  # by the user; see _is_synchronized
    _synchronized_for_scaler: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until every gradient is reduced over the ranks; ``step()`` then uses the results.

        Parameters whose gradient was not computed contribute zeros. Raises HorovodInternalError
        when the ranks disagree or a rank is gone.
        """
        self._reducer.synchronize(self.param_groups)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step()`` does not call ``synchronize()``: you must have called it yourself."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """``synchronize()``, then the wrapped optimizer's step.

        A ``closure`` is synchronised every time that the wrapped optimizer calls it. For
        torch.optim.LBFGS, whose search depends on its value, the value is reduced too.

        Raises AssertionError if synchronizing is skipped and has not been done.
        """
        if not self._should_synchronize and self._reducer.is_reducing:
            raise AssertionError(
                "optimizer.step() was called inside optimizer.skip_synchronize() while the "
                "gradients are being reduced. Call optimizer.synchronize() before it."
            )
        for_scaler = self._synchronized_for_scaler and not self._reducer.is_pending
        self._synchronized_for_scaler = False
        if not self._should_synchronize or for_scaler:
            self._synchronized = False
            return self._step_wrapped(closure, kwargs)
        if self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). This can cause training slowdown: the gradients are "
                "reduced once more, which, unless op=Average, also changes them. Use the "
                "optimizer.skip_synchronize() context if you call optimizer.synchronize().",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
        else:
            if self._reducer.is_pending:
                self.synchronize()
            closure = self._synchronized_closure(closure)
        self._synchronized = False
        return self._step_wrapped(closure, kwargs)

    # Keeps torch from wrapping this step too: hooks on the optimizer would run twice a step.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's ``zero_grad``; see DistributedBase."""
        super().zero_grad(*args, **kwargs)
        self._synchronized = False
        self._synchronized_for_scaler = False

    @property
    def _is_synchronized(self) -> bool:
        # A call for an earlier step (which a scaler skipped, say) is void after a backward pass.
        return self._synchronized and not self._reducer.is_pending

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's ``load_state_dict``; see DistributedBase."""
        super().load_state_dict(*args, **kwargs)
        self._synchronized = False
        self._synchronized_for_scaler = False
        self._should_synchronize = True

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch's GradScaler.step asks this before it looks at gradients; nothing else asks.

        The gradients must be reduced before it looks for infinities: then every rank finds those
        of all ranks, and all ranks take the step or skip it together.
        """
        if self._should_synchronize and not self._is_synchronized:
            self._reducer.synchronize(self.param_groups)
            self._synchronized_for_scaler = True
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _step_wrapped(self, closure: Callable[[], Any] | None, kwargs: dict[str, Any]) -> Any:
        self._tell_wrapped()
        # Not every optimizer's step takes a closure.
        loss = super().step(**kwargs) if closure is None else super().step(closure, **kwargs)
        self._tell_others()
        step_ended(self)
        description.tell(self._reducer, self)
        return loss

    def _synchronized_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        searches = isinstance(self, torch.optim.LBFGS) and self._reducer.communicates

        def evaluate() -> Any:
            loss = closure()
            self._reducer.synchronize(self.param_groups)
            return self._reducer.reduce_loss(loss) if searches else loss

        return evaluate


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_buffer_view: bool = False,
) -> Any:
    """An optimizer of the same class as ``optimizer`` that reduces gradients over the ranks.

    Every parameter's gradient is submitted as soon as the backward pass has computed it, or all of
    them in ``step()`` if the backward passes keep every CPU of the host busy. The set of parameters
    that require gradients may change between steps, equally on all ranks: frozen ones are left
    alone, thawed and added ones are reduced. All ranks must make their optimizers in the same
    order. The result shares ``param_groups`` with ``optimizer``, not its state.

    named_parameters: (name, parameter) pairs, as ``model.named_parameters()`` gives them.
    compression: how gradients are sent, for example ``Compression.fp16``.
    backward_passes_per_step: gradients are reduced after adding up over this many backward passes.
    op: ``Adasum`` on several ranks (a power of two) combines the ranks' steps instead of their
        gradients; it supports only the arguments above. See `adasum`.
    gradient_predivide_factor: splits the averaging: 1/factor before the sum, factor/size after it.
    groups: a number, or lists of parameters: reduces the gradients of a group together.
        ``num_groups`` is its deprecated name.
    sparse_as_dense: reduces sparse gradients as dense ones.
    process_set: the ranks to reduce over; others take plain local steps.
    gradient_as_buffer_view: keeps the gradients in memory that the ranks share, and reduces them
        there without copying. See docs/distributed-optimizer.md.

    Raises ValueError for wrong arguments, NotImplementedError for Adasum with a process set or
    another number of ranks. With one process nothing is communicated.
    """
    _check_arguments(optimizer, compression, op, gradient_predivide_factor)
    if gradient_as_buffer_view:
        _check_views(compression, op)
    if num_groups != 0:
        warnings.warn(
            "The parameter num_groups is deprecated; use groups.", DeprecationWarning, stacklevel=2
        )
        groups = num_groups if groups is None else groups
    check_groups(groups, torch.Tensor, "torch.Tensor")
    ranks = size()
    names = parameter_names(optimizer, named_parameters)
    id_of(process_set)
    if any(optimizer.state.values()):
        warnings.warn(
            "DistributedOptimizer does not take over the state of the optimizer it wraps (momentum "
            "and the like); call load_state_dict() on the result.",
            stacklevel=2,
        )
    if op == Adasum and ranks > 1:
        check_adasum(optimizer, process_set)
        settings = Settings(True, process_set, op, compression)
        delta = wrap(optimizer, DeltaMixin)
        delta._reducer = DeltaReducer(delta, names, settings, backward_passes_per_step)
        return delta
    settings = Settings(
        communicates=bool(process_set.included())
        and (ranks > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"),
        process_set=process_set,
        op=op,
        compression=compression,
        predivide=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        views=gradient_as_buffer_view,
    )
    distributed = wrap(optimizer, GradientMixin)
    distributed._synchronized = False
    distributed._synchronized_for_scaler = False
    distributed._should_synchronize = True
    distributed._reducer = GradientReducer(
        distributed.param_groups,
        names,
        settings,
        backward_passes_per_step=backward_passes_per_step,
        groups=groups,
        kind=type(optimizer).__name__,
    )
    return distributed


def _check_arguments(
    optimizer: torch.optim.Optimizer, compression: Any, op: int, predivide: float
) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"DistributedOptimizer wraps a torch.optim.Optimizer, not a {type(optimizer).__name__}."
        )
    if isinstance(optimizer, DistributedBase):
        raise ValueError("The optimizer is a DistributedOptimizer already.")
    if op not in _OPS:
        raise ValueError(
            f"op={op!r} is unknown; DistributedOptimizer takes Average, Sum, Adasum, Min, Max and "
            "Product."
        )
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(
            "compression must have compress() and decompress(), as Compression.none and "
            f"Compression.fp16 have; {compression!r} has not."
        )
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is not supported with op != Average.")
    if not predivide > 0:
        raise ValueError(f"gradient_predivide_factor={predivide} must be > 0.")


def _check_views(compression: Any, op: int) -> None:
    if compression is not Compression.none:
        raise ValueError(
            "gradient_as_buffer_view=True reduces the gradients themselves; compression reduces "
            "compressed copies. Use one or the other."
        )
    if op == Adasum:
        raise ValueError(
            "gradient_as_buffer_view=True is not supported with op=Adasum, which reduces the "
            "optimizer's steps, not the gradients."
        )


# Horovod's name; programs use it to annotate and recognise distributed optimizers of both kinds.
_DistributedOptimizer = DistributedBase
