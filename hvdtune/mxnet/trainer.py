"""A Gluon Trainer that reduces the gradients over all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.mxnet import gradients
from hvdtune.mxnet.compression import Compression
from hvdtune.mxnet.optimizer import DistributedOptimizer


class DistributedTrainer(mx.gluon.Trainer):
    """`mx.gluon.Trainer` whose `step` averages the gradients over the ranks before it updates.

    Parameters with ``grad_req="null"`` are skipped. `step(batch_size)` takes one rank's batch size.
    """

    def __init__(
        self,
        params: Mapping[str, Parameter] | ParameterDict | Sequence[Parameter],
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """``params``: in the same order on all ranks, each on one device.

        ``prefix``: for the names of gradients; trainers whose steps overlap need different ones.
        ``num_groups``: gradients are reduced in this many groups; 0: each alone. Raises ValueError
        for parameters on several devices, and for invalid options.
        """
        gradients.check_options(gradient_predivide_factor, num_groups)
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer reduces gradients itself: the DistributedOptimizer that it was "
                "given is unwrapped.",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        if isinstance(params, Mapping | ParameterDict):
            # Do not let Gluon sort them: names, and so the order, may differ between ranks.
            params = list(params.values())
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        if len(self._contexts or ()) > 1:
            raise ValueError(
                f"DistributedTrainer takes parameters on one device, not on {len(self._contexts)}; "
                "start one process for each device."
            )
        self._compression = compression
        self._predivide = gradient_predivide_factor
        self._prefix = "" if prefix is None else str(prefix)
        self._num_groups = num_groups
        self._process_set = process_set

    def _allreduce_grads(self) -> None:
        gradients.reduce(
            [(name, gradient, gradient) for name, gradient in self._gradients()],
            self._process_set,
            self._predivide,
            self._num_groups,
            self._prefix,
            self._compression,
        )

    def _update(self, ignore_stale_grad: bool = False) -> None:
        super()._update(ignore_stale_grad)
        gradients.step_ends(self, [gradient for _, gradient in self._gradients()])

    def _gradients(self) -> list[tuple[str, NDArray]]:
        """The gradients of the trained parameters, by position."""
        return [
            (str(index), parameter.list_grad()[0])
            for index, parameter in enumerate(self._params)
            if parameter.grad_req != "null"
        ]
