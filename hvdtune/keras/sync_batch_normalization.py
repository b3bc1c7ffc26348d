"""Batch normalisation over the combined batch of all ranks.

With the formulas of `faces.batch_norm`. Here two reductions compute them, N and m first, then v,
so that the backend's own differentiation applies. The gradients are those of the sum of the
ranks' losses.
"""

from __future__ import annotations

from typing import Any

from hvdtune.core import world
from hvdtune.core.reduce_ops import Sum
from hvdtune.keras import backends
from hvdtune.keras.package import LEGACY, backend_name, keras


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the combined batch of all ranks, in training.

    Every value has the same weight, however many each rank has. Takes that layer's arguments, but
    `fused` must be False. Raises ValueError for another `fused`.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError(
                "SyncBatchNormalization does not support fused=True."
                if fused
                else "SyncBatchNormalization needs fused=False."
            )
        super().__init__(**({"fused": False} if LEGACY else {}), **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The configuration of the layer."""
        config: dict[str, Any] = super().get_config()
        config.pop("fused", None)
        return config

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        backend = backends.current()
        if world.size() == 1 or (backend_name() == "torch" and backend.is_traced(inputs)):
            return mean, variance
        mask = kwargs.get("mask") if LEGACY else [*args, *kwargs.values()][0]
        ops = _functions()
        # Every channel has the same number of values.
        if mask is None:
            count = backend.cast(ops.size(inputs), mean.dtype) / backend.cast(
                ops.size(mean), mean.dtype
            )
        else:
            # Keras broadcasts a mask without channels over the inputs.
            weights = backend.cast(ops.expand_dims(mask, -1), mean.dtype)
            weights = ops.broadcast_to(weights, ops.shape(inputs))
            count = _sum(weights) / backend.cast(ops.size(mean), mean.dtype)
        return _joined(mean, variance, count, self.name)


def _functions() -> Any:
    """TensorFlow's functions for tf-keras; Keras' own, which have the same names, for Keras 3."""
    if LEGACY:
        import tensorflow as tf

        return tf
    return keras.ops


def _sum(tensor: Any) -> Any:
    ops = _functions()
    return ops.reduce_sum(tensor) if LEGACY else ops.sum(tensor)


def _joined(mean: Any, variance: Any, count: Any, name: str) -> tuple[Any, Any]:
    """The moments of the combined batch."""
    ops, backend = _functions(), backends.current()
    join = ops.concat if LEGACY else ops.concatenate
    flat, spread = ops.reshape(mean, (-1,)), ops.reshape(variance, (-1,))
    # A rank whose whole batch is masked has no mean, and counts nothing.
    some = count > 0
    flat = ops.where(some, flat, ops.zeros_like(flat))
    spread = ops.where(some, spread, ops.zeros_like(spread))
    own = join([flat * count, ops.reshape(count, (1,))], 0)
    sums = backend.allreduce(own, f"{name}.mean", Sum, 1.0, 1.0)
    total = ops.maximum(sums[-1], 1e-12)
    joined = sums[:-1] / total
    squares = count * (spread + (flat - joined) ** 2)
    squares = backend.allreduce(squares, f"{name}.variance", Sum, 1.0, 1.0)
    shape = ops.shape(mean)
    return ops.reshape(joined, shape), ops.reshape(squares / total, shape)
