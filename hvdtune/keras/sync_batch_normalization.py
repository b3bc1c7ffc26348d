"""Batch normalisation over the joined batch of all ranks.

With the formulas of `faces.batch_norm`; here two reductions give them, so that the backend's own
differentiation goes through: N and m first, then v. The gradients are those of the sum of the
ranks' losses.
"""

from __future__ import annotations

from typing import Any

from hvdtune.core import world
from hvdtune.core.reduce_ops import Sum
from hvdtune.keras import backends
from hvdtune.keras.package import LEGACY, backend_name, keras


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose batch, in training, is that of all ranks together.

    Every value counts the same, however many each rank has. Takes that layer's arguments, besides
    `fused`, which must be False. Raises ValueError for another `fused`.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError(
                "SyncBatchNormalization does not support fused=True."
                if fused
                else "SyncBatchNormalization needs fused=False."
            )
        if not kwargs.get("name"):
            kwargs["name"] = _unique_name()
        super().__init__(**({"fused": False} if LEGACY else {}), **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The configuration of the layer."""
        config: dict[str, Any] = super().get_config()
        config.pop("fused", None)
        return config

    if LEGACY:

        def _moments(  # type: ignore[misc]
            self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
        ) -> tuple[Any, Any]:
            import tensorflow as tf

            if world.size() == 1:
                return super()._moments(inputs, reduction_axes, keep_dims, mask=mask)  # type: ignore[no-any-return]
            mean, variance = super()._moments(inputs, reduction_axes, keep_dims, mask=mask)
            if mask is None:
                count = tf.size(inputs) / tf.size(mean)
            else:
                weights = tf.broadcast_to(
                    tf.expand_dims(tf.cast(mask, inputs.dtype), -1), tf.shape(inputs)
                )
                count = tf.reduce_sum(weights) / tf.cast(tf.size(mean), inputs.dtype)
            return _joined(mean, variance, tf.cast(count, mean.dtype), self.name, tf)

    else:

        def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
            mean, variance = super()._moments(inputs, mask)
            if world.size() == 1 or (
                backend_name() == "torch" and backends.current().is_traced(inputs)
            ):
                return mean, variance
            ops = keras.ops
            if mask is None:
                count = ops.size(inputs) / ops.size(mean)
            else:
                count = ops.sum(ops.cast(mask, mean.dtype))
                # The mask has no channels, and one axis of any other kind may be broadcast.
                shape, masked = ops.shape(inputs), ops.shape(mask)
                for axis, length in enumerate(masked):
                    if length == 1:
                        count = count * ops.cast(shape[axis], mean.dtype)
            count = ops.cast(count, mean.dtype)
            return _joined(mean, variance, count, self.name, ops)


def _joined(mean: Any, variance: Any, count: Any, name: str, ops: Any) -> tuple[Any, Any]:
    """The moments of the joined batch; `ops` has TensorFlow's or Keras' functions."""
    backend = backends.current()
    reduce_sum = lambda tensor, what: backend.allreduce(  # noqa: E731
        tensor, f"{name}.{what}", Sum, 1.0, 1.0
    )
    flat = ops.reshape(mean, (-1,))
    own = ops.concat if hasattr(ops, "concat") else ops.concatenate
    # A rank whose batch is masked entirely has no mean, and counts nothing.
    some = count > 0
    flat = ops.where(some, flat, ops.zeros_like(flat))
    spread = ops.where(some, ops.reshape(variance, (-1,)), ops.zeros_like(flat))
    sums = reduce_sum(own([flat * count, ops.reshape(count, (1,))], 0), "mean")
    total = ops.maximum(sums[-1], 1e-12)
    joined = sums[:-1] / total
    squares = reduce_sum(count * (spread + (flat - joined) ** 2), "variance")
    shape = ops.shape(mean)
    return ops.reshape(joined, shape), ops.reshape(squares / total, shape)


def _unique_name() -> str:
    base = "sync_batch_normalization"
    if LEGACY:
        return str(keras.backend.unique_object_name(base, zero_based=True))
    from keras.src.utils.naming import auto_name

    return str(auto_name(base))
