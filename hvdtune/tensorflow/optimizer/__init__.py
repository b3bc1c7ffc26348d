"""``DistributedOptimizer`` for optimizers of ``tf.compat.v1.train``.

Knows `reductions` and `gradient_reduction` of the face.
"""

from hvdtune.tensorflow.optimizer.distributed import DistributedOptimizer, _DistributedOptimizer

__all__ = ["DistributedOptimizer", "_DistributedOptimizer"]
