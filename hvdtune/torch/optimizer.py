"""``DistributedOptimizer``: reduces gradients over the ranks while the backward pass runs."""

from __future__ import annotations

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Adasum, Average
from hvdtune.core.world import size
from hvdtune.torch.compression import Compression
from hvdtune.torch.groups import Groups, check_groups
from hvdtune.torch.reducer import GradientReducer


class DistributedMixin(torch.optim.Optimizer):
    """The methods that ``DistributedOptimizer`` puts in front of the wrapped optimizer's."""

    _reducer: GradientReducer
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until every gradient is reduced over the ranks; ``step()`` then uses the results.

        Parameters whose gradient was not computed take part with zeros. Raises
        HorovodInternalError when the ranks disagree or one is gone.
        """
        self._reducer.synchronize(self.param_groups)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step()`` does not call ``synchronize()``: for use after calling it yourself."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """``synchronize()``, then the wrapped optimizer's step.

        A ``closure`` is synchronised after every time that the wrapped optimizer calls it.
        """
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() was called after optimizer.synchronize() but outside of "
                "optimizer.skip_synchronize(): the gradients are reduced once more, which takes "
                "time and, unless op=Average, changes them.",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
        else:
            if self._reducer.is_pending:
                self.synchronize()
            closure = self._synchronized_closure(closure)
        self._synchronized = False
        return super().step(closure)

    # Keeps torch from wrapping this step too: hooks on the optimizer would run twice a step.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's ``zero_grad``.

        Raises AssertionError between ``backward()`` and ``step()`` or ``synchronize()``: the
        gradients are being reduced then.
        """
        if self._reducer.is_pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(), while the gradients are being "
                "reduced. Call it before backward() or after step()."
            )
        super().zero_grad(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce gradients at every ``passes``-th backward pass from now on."""
        self._reducer.set_backward_passes_per_step(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The wrapped optimizer's ``load_state_dict``; waits for reductions under way first."""
        self._reducer.reset()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(*args, **kwargs)

    def _synchronized_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self._reducer.synchronize(self.param_groups)
            return loss

        return evaluate


def _check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The allreduce name of every parameter of ``optimizer``, sorted by name.

    Raises ValueError for anything but pairs, for a repeated name and for a parameter without one.
    """
    own = {
        parameter: f"allreduce.noname.{i}.{j}"
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return own
    pairs = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), as "
            "model.named_parameters() gives it."
        )
    counts = Counter(name for name, _ in pairs)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(
            "Parameter names in named_parameters must be unique. "
            f"Found duplicates: {', '.join(repeated)}."
        )
    named = {parameter: name for name, parameter in sorted(pairs, key=lambda pair: pair[0])}
    unnamed = [
        f"{position.removeprefix('allreduce.noname.')} of shape {tuple(parameter.shape)}"
        for parameter, position in own.items()
        if parameter not in named
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"By parameter group and index: {', '.join(unnamed[:5])}"
            f"{' …' if len(unnamed) > 5 else ''}."
        )
    return {parameter: name for parameter, name in named.items() if parameter in own}


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
) -> Any:
    """An optimizer of the same class as ``optimizer`` that reduces gradients over the ranks.

    Every parameter's gradient is handed to the engine as soon as the backward pass has it. Which
    parameters require gradients may change between steps, equally on all ranks: frozen ones are
    left alone, thawed and added ones take part.
    The result shares ``param_groups`` with ``optimizer``, not its state.

    named_parameters: (name, parameter) pairs, as ``model.named_parameters()`` gives them.
    compression: what gradients travel as, for example ``Compression.fp16``.
    backward_passes_per_step: gradients add up over this many backward passes and are then reduced.
    gradient_predivide_factor: splits the averaging: 1/factor before the sum, factor/size after it.
    groups: a number, or lists of parameters: reduces the gradients of a group as one.
        ``num_groups`` is its deprecated name.
    sparse_as_dense: reduces sparse gradients as dense ones.
    process_set: the ranks to reduce over; others take plain local steps.

    Raises ValueError for wrong arguments, NotImplementedError for ``op=Adasum`` on several ranks.
    With one process nothing is communicated.
    """
    if isinstance(optimizer, DistributedMixin):
        raise ValueError("The optimizer is a DistributedOptimizer already.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is not supported with op != Average.")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor} must be > 0.")
    if num_groups != 0:
        warnings.warn(
            "The parameter num_groups is deprecated; use groups.", DeprecationWarning, stacklevel=2
        )
        groups = num_groups if groups is None else groups
    check_groups(groups)
    ranks = size()
    if op == Adasum and ranks > 1:
        raise NotImplementedError(
            "DistributedOptimizer with op=Adasum is not supported by this version of hvdtune; "
            "use Average or Sum."
        )
    names = _check_names(optimizer, named_parameters)
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered: call add_process_set first.")
    communicates = bool(process_set.included()) and (
        ranks > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"
    )
    distributed = _wrap(optimizer)
    distributed._reducer = GradientReducer(
        distributed.param_groups,
        names,
        communicates=communicates,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return distributed


def _wrap(optimizer: torch.optim.Optimizer) -> Any:
    """An object of a class between ``DistributedMixin`` and the class of ``optimizer``.

    Attributes are taken over instead of calling the constructor: that one may need arguments that
    nobody remembers.
    """
    wrapped = type(optimizer)
    cls: Any = type(wrapped.__name__, (DistributedMixin, wrapped), {"__doc__": wrapped.__doc__})
    distributed = cls.__new__(cls)
    for key, value in vars(optimizer).items():
        # A learning rate scheduler replaces step() in the instance; that one is the wrapped's.
        if key not in vars(DistributedMixin):
            distributed.__dict__[key] = value
    distributed.state = defaultdict(dict)
    distributed._synchronized = False
    distributed._should_synchronize = True
    return distributed
