"""`DistributedOptimizer` for Keras: an optimizer that reduces gradients over the ranks.

Knows the face's `gradients` and `backends`.
"""

from hvdtune.keras.optimizer.wrapping import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    is_distributed,
)

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "is_distributed"]
