"""`DistributedOptimizer` for Keras: an optimizer that reduces gradients over the ranks."""

from hvdtune.keras.optimizer.wrapping import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    is_distributed,
)

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "is_distributed"]
