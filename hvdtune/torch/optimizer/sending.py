"""Hands gradients to the engine in the form that the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hvdtune.core import operations
from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Adasum, Average, Sum
from hvdtune.faces.gradients import Layout
from hvdtune.torch import async_ops
from hvdtune.torch.adapter import CODES, as_buffer
from hvdtune.torch.compression import Compression
from hvdtune.torch.optimizer.submission import Member, Submission, named


@dataclass
class Settings:
    """How gradients are reduced; see DistributedOptimizer.

    If not ``communicates``, nothing is ever submitted and ``synchronize`` does nothing.
    """

    communicates: bool
    process_set: ProcessSet
    op: int = Average
    compression: Any = Compression.none
    predivide: float = 1.0
    sparse_as_dense: bool = False
    views: bool = False  # gradients are in memory that the ranks share
    prescale: float = field(init=False)
    postscale: float = field(init=False)

    def __post_init__(self) -> None:
        split = self.predivide if self.op == Average else 1.0
        self.prescale = 1.0 / split
        self.postscale = split


class Sender:
    """Starts reductions of payloads: gradients, or whatever is reduced in their place."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.compresses = settings.compression is not Compression.none

    @property
    def sends_as_is(self) -> bool:
        """Whether dense gradients are sent as they are, and reduced in place."""
        return not self.compresses and self.settings.op != Adasum

    def plan(self, names: tuple[str, ...]) -> operations.AllreducePlan:
        """A plan that reduces plain payloads in place and waits: cheaper than one by one.

        ``names``: the members' ``wire_name``.
        """
        settings = self.settings
        return operations.plan_allreduces(
            CODES,
            names,
            settings.op,
            settings.prescale,
            settings.postscale,
            settings.process_set,
        )

    def single(self, member: Member, payload: torch.Tensor) -> Submission:
        """Start reducing the payload of one parameter, in the layout that all ranks use."""
        layout = member.layout
        if payload.is_sparse:
            if not (layout.dense or self.settings.sparse_as_dense):
                return self._sparse(member, payload)
        elif layout.sparse:
            return self._sparse(member, payload.to_sparse(layout.sparse_dims))
        return self._dense(member, payload)

    def group(self, members: Sequence[Member], payloads: Sequence[torch.Tensor]) -> Submission:
        """Start reducing several payloads together. Raises ValueError if one is sparse."""
        settings = self.settings
        tensors, contexts = [], []
        for member, payload in zip(members, payloads, strict=True):
            if (payload.is_sparse or member.layout.sparse) and not settings.sparse_as_dense:
                sentence = (
                    "it is sparse, which a group cannot hold; use sparse_as_dense=True or no groups"
                )
                raise named(ValueError(sentence), [member])
            tensor, context = self._compress(payload)
            tensors.append(tensor)
            contexts.append(context)
        handle = async_ops.grouped_allreduce_async_(
            tensors,
            name=members[0].wire_name,
            op=settings.op,
            prescale_factor=settings.prescale,
            postscale_factor=settings.postscale,
            process_set=settings.process_set,
        )
        versions = [payload._version for payload in payloads]
        return Submission(members, payloads, contexts, versions, handle)

    def _dense(self, member: Member, payload: torch.Tensor) -> Submission:
        settings = self.settings
        if self.compresses or payload.layout is not torch.strided or not payload.is_contiguous():
            tensor, context = self._compress(payload)
        else:
            tensor, context = payload, None
        handle = async_ops.allreduce_async_(
            tensor,
            None,
            member.wire_name,
            settings.op,
            settings.prescale,
            settings.postscale,
            settings.process_set,
        )
        return Submission((member,), (payload,), (context,), (payload._version,), handle)

    def _sparse(self, member: Member, payload: torch.Tensor) -> Submission:
        op = self.settings.op
        if op not in (Average, Sum):
            raise ValueError(
                "sparse gradients can only be averaged or added; use sparse_as_dense=True for "
                "other reductions."
            )
        wait = async_ops.sparse_allreduce_async(
            payload, member.wire_name, op, self.settings.process_set
        )
        versions = (payload._version,)
        return Submission((member,), (payload,), (None,), versions, wait=lambda: (wait(),))

    def _compress(self, payload: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor sent for ``payload``: compressed, dense and contiguous."""
        if payload.layout not in (torch.strided, torch.sparse_coo):
            as_buffer(payload, "allreduce")  # raises an error with advice
        dense = payload.to_dense() if payload.is_sparse else payload
        return self.settings.compression.compress(dense.contiguous())


def zeros_for(parameter: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A gradient of ``parameter`` that is zero everywhere, dense unless the ranks' are sparse."""
    with torch.inference_mode(False):
        if not layout.sparse:
            return torch.zeros_like(parameter.detach())
        shape, device = parameter.shape, parameter.device
        return torch.sparse_coo_tensor(
            torch.empty((layout.sparse_dims, 0), dtype=torch.int64, device=device),
            torch.empty((0, *shape[layout.sparse_dims :]), dtype=parameter.dtype, device=device),
            shape,
            device=device,
            check_invariants=False,
        )
