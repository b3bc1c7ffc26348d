"""``DistributedOptimizer``: when and how the ranks reduce its gradients, and under which names.

Knows the collectives and `phases` of `hvdtune.torch`. The names are those of Horovod's module.
"""

from hvdtune.torch.optimizer.distributed import DistributedOptimizer, _DistributedOptimizer

__all__ = ["DistributedOptimizer", "_DistributedOptimizer"]
