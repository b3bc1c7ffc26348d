"""Averages the gradients of a LightningModule over the ranks.

One object serves all optimizers of the module. These stay the user's own objects, so schedulers,
scalers and checkpoints do not notice it. Unlike ``DistributedOptimizer`` it reduces only gradients
that a backward pass has computed. A gradient is reduced if any rank has computed it; the other
ranks contribute zeros. All other gradients stay unchanged, None included, as they would in one
process: in a GAN, the discriminator's backward pass leaves the generator alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

import hvdtune.torch as hvd
from hvdtune.torch.optimizer.sending import no_entries
from hvdtune.torch.optimizer.watched import remove_all

ParamGroups = Sequence[dict[str, Any]]  # as torch.optim.Optimizer has them
Hook = Callable[[torch.Tensor], None]


class GradientAverager:
    """Averages gradients, over the global process set, while the backward pass goes on.

    param_groups: of all optimizers.
    names: the parameters' names in messages; the same on all ranks.
    compression: how gradients are sent.
    sparse_as_dense: whether sparse gradients are sent as dense ones.
    """

    def __init__(
        self,
        param_groups: ParamGroups,
        names: dict[torch.Tensor, str],
        *,
        compression: Any,
        sparse_as_dense: bool,
    ) -> None:
        self._names = dict(names)
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._watched: dict[torch.Tensor, None] = {}  # in the same order on all ranks
        self._computed: set[torch.Tensor] = set()  # on this rank, but not reduced yet
        self._waits: dict[torch.Tensor, Callable[[], torch.Tensor]] = {}  # reductions under way
        self._submits_at_once = False
        self._hooks: list[RemovableHandle] = []
        # The hooks are on the parameters and must not outlive this object.
        weakref.finalize(self, remove_all, self._hooks)
        self._watch(param_groups)

    @property
    def has_unreduced(self) -> bool:
        """Whether this rank has computed gradients that are not reduced yet."""
        return bool(self._computed)

    @contextmanager
    def reducing(self, param_groups: ParamGroups) -> Iterator[None]:
        """Inside, gradients are submitted as soon as the backward pass has them.

        At the end of the block, these and those of earlier passes have been reduced. Collective.
        """
        self._watch(param_groups)
        self._submits_at_once = True
        try:
            yield
        finally:
            self._submits_at_once = False
        self.synchronize(param_groups)

    def synchronize(self, param_groups: ParamGroups) -> None:
        """Reduce the gradients that any rank has computed since the last call. Collective.

        ``param_groups`` are those of all optimizers, which may have gained parameters. Raises
        HorovodInternalError when the ranks disagree or a rank is gone.
        """
        self._watch(param_groups)
        try:
            for parameter, dense, sparse_dims in self._computed_anywhere():
                if parameter not in self._waits:
                    self._submit(parameter, dense, sparse_dims)
            # Wait for the last one first: a blocked wait makes the engine close its batch, and
            # all earlier submissions can then share that batch.
            for parameter, wait in reversed(self._waits.items()):
                self._store(parameter, wait())
        finally:
            self._waits.clear()
            # A parameter that is frozen now (another optimizer has its turn) waits until thawed.
            self._computed = {p for p in self._computed if not p.requires_grad}

    def _watch(self, param_groups: ParamGroups) -> None:
        """Watch the parameters that are new: unfrozen, or added to an optimizer."""
        for i, group in enumerate(param_groups):
            for j, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._watched:
                    self._watched[parameter] = None
                    self._names.setdefault(parameter, f"lightning.noname.{i}.{j}")
                    handle = parameter.register_post_accumulate_grad_hook(_hook(self))
                    self._hooks.append(handle)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Runs in the backward pass when the gradient of ``parameter`` is complete."""
        if parameter in self._waits:
            raise RuntimeError(
                f"The gradient of parameter {self._names[parameter]!r} was computed twice in one "
                "backward pass, the second time while it was being reduced. Activation "
                "checkpointing does that with use_reentrant=True; use use_reentrant=False."
            )
        self._computed.add(parameter)
        gradient = parameter.grad
        # All ranks must first agree on how to reduce a sparse gradient.
        if self._submits_at_once and gradient is not None and not gradient.is_sparse:
            self._submit(parameter, True, 0)

    def _computed_anywhere(self) -> list[tuple[torch.Tensor, bool, int]]:
        """The parameters whose gradient any rank has computed, in the same order on all ranks.

        Each with whether any rank's gradient is dense, and the sparse dimensions of sparse ones.
        """
        own = []
        for parameter in self._watched:
            gradient = parameter.grad
            if gradient is None or parameter not in self._computed or not parameter.requires_grad:
                own.append((0, 0))
            elif gradient.is_sparse:
                own.append((0, gradient.sparse_dim()))
            else:
                own.append((1, 0))
        table = torch.tensor(own, dtype=torch.int32).reshape(-1, 2)
        hvd.allreduce_(table, op=hvd.Max, name="lightning.computed")
        return [
            (parameter, bool(dense), sparse_dims)
            for parameter, (dense, sparse_dims) in zip(self._watched, table.tolist(), strict=True)
            if dense or sparse_dims
        ]

    def _submit(self, parameter: torch.Tensor, dense: bool, sparse_dims: int) -> None:
        """Start the reduction. Some ranks may have no gradient, or one in another layout."""
        name = self._names[parameter]
        if parameter.grad is None:
            parameter.grad = _zeros(parameter, 0 if dense else sparse_dims)
        gradient = parameter.grad.detach()
        try:
            if gradient.is_sparse and not dense and not self._sparse_as_dense:
                self._waits[parameter] = hvd.sparse_allreduce_async(gradient, name, hvd.Average)
                return
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            tensor, context = self._compression.compress(gradient.contiguous())
            handle = hvd.allreduce_async_(tensor, op=hvd.Average, name=name)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Gradient of parameter {name!r}: {error}") from error

        def wait() -> torch.Tensor:
            result = self._compression.decompress(hvd.synchronize(handle), context)
            return result if dense else result.to_sparse(sparse_dims)

        self._waits[parameter] = wait

    @staticmethod
    def _store(parameter: torch.Tensor, result: torch.Tensor) -> None:
        """Make ``result`` the gradient; if it was reduced in place, it already is."""
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or result.is_sparse:
            parameter.grad = result
        elif result.data_ptr() != gradient.data_ptr():
            gradient.detach().copy_(result)


def _zeros(parameter: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """A gradient that is zero: dense, or a sparse one without entries."""
    if not sparse_dims:
        return torch.zeros_like(parameter.detach())
    return no_entries(parameter, sparse_dims)


def _hook(averager: GradientAverager) -> Hook:
    reference = weakref.ref(averager)

    def hook(parameter: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive._on_gradient(parameter)

    return hook
