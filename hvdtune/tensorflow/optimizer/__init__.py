"""``DistributedOptimizer``: what the ranks share of an optimizer of ``tf.compat.v1.train``."""

from hvdtune.tensorflow.optimizer.distributed import DistributedOptimizer, _DistributedOptimizer

__all__ = ["DistributedOptimizer", "_DistributedOptimizer"]
