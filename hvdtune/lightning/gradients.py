"""Averages the gradients of a LightningModule over the ranks.

One object serves all optimizers of the module. These stay the user's own objects, so schedulers,
scalers and checkpoints do not notice it. Unlike ``DistributedOptimizer`` it reduces only gradients
that a backward pass has computed. A gradient is reduced if any rank has computed it; the other
ranks contribute zeros. All other gradients stay unchanged, None included, as they would in one
process: in a GAN, the discriminator's backward pass leaves the generator alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import hvdtune.torch as hvd
from hvdtune.faces.gradients import DENSE, UNKNOWN, Layout
from hvdtune.torch.optimizer.hooked import HookedReducer
from hvdtune.torch.optimizer.parameter_names import Names
from hvdtune.torch.optimizer.sending import Settings
from hvdtune.torch.optimizer.submission import Member
from hvdtune.torch.optimizer.watched import ParamGroups, layout_of


class GradientAverager(HookedReducer):
    """Averages gradients, over the global process set, while the backward pass goes on.

    param_groups: of all optimizers.
    names: the parameters' names in messages; the same on all ranks.
    compression: how gradients are sent.
    sparse_as_dense: whether sparse gradients are sent as dense ones.
    """

    _way_to_change = "Change gradients in on_after_backward() or later."

    def __init__(
        self, param_groups: ParamGroups, names: Names, *, compression: Any, sparse_as_dense: bool
    ) -> None:
        settings = Settings(
            communicates=True,
            process_set=hvd.global_process_set,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
        )
        super().__init__(dict(names), settings)
        self._computed: set[Member] = set()  # on this rank, but not reduced yet
        self._submits_at_once = False
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
            for member in self._computed_anywhere():
                if member.unit not in self._submissions:
                    self._start(member.unit, (member,))
            self._collect()
        finally:
            self._submissions.clear()
            # A parameter that is frozen now (another optimizer has its turn) waits until thawed.
            self._computed = {m for m in self._computed if not m.parameter.requires_grad}

    def _watch(self, param_groups: ParamGroups) -> None:
        """Watch the parameters that are new: unfrozen, or added to an optimizer.

        They are reduced under their own names: only one averager is in use at a time.
        """
        self._watched.watch(param_groups, None, passes=1)
        for member in self._watched.undecided:
            member.wire_name = member.name
        self._watched.undecided.clear()

    def _on_gradient(self, member: Member) -> None:
        if member.unit in self._submissions:
            raise RuntimeError(
                f"The gradient of parameter {member.name!r} was computed twice in one "
                "backward pass, the second time while it was being reduced. Activation "
                "checkpointing does that with use_reentrant=True; use use_reentrant=False."
            )
        self._computed.add(member)
        # All ranks must first agree on how to reduce a sparse gradient.
        if self._submits_at_once and layout_of(member.parameter.grad) is DENSE:
            member.layout = DENSE
            self._start(member.unit, (member,))

    def _computed_anywhere(self) -> list[Member]:
        """The parameters whose gradient any rank has computed, in the same order on all ranks.

        Sets their ``layout`` to what all ranks know of these gradients.
        """
        members = self._watched.in_order
        own = [self._own_layout(member) for member in members]
        table = torch.tensor(
            [(layout.dense, layout.sparse_dims) for layout in own], dtype=torch.int32, device="cpu"
        ).reshape(-1, 2)
        hvd.allreduce_(table, op=hvd.Max, name="lightning.computed")
        for member, (dense, sparse_dims) in zip(members, table.tolist(), strict=True):
            sparse = Layout(False, sparse_dims) if sparse_dims else UNKNOWN
            member.layout = DENSE if dense else sparse
        return [member for member in members if member.layout.known]

    def _own_layout(self, member: Member) -> Layout:
        """The layout of the gradient that this rank has computed and may be reduced now."""
        is_ready = member in self._computed and member.parameter.requires_grad
        return layout_of(member.parameter.grad if is_ready else None)

    def _payload(self, member: Member) -> torch.Tensor:
        # Compression must not extend the graph that create_graph=True makes.
        payload = super()._payload(member)
        return payload.detach() if payload.requires_grad else payload

    def _store(self, member: Member, result: torch.Tensor, context: Any) -> None:
        gradient = member.parameter.grad
        if gradient is not None and gradient.is_sparse and member.layout.dense:
            # Optimizers keep state in the gradient's layout, so it must be the same on all ranks.
            member.parameter.grad = self.settings.compression.decompress(result, context)
        else:
            super()._store(member, result, context)
