"""hvdtune for PyTorch Lightning: `Trainer(strategy=HvdtuneStrategy())`, one process per rank.

Importing this module also registers ``strategy="hvdtune"`` and ``strategy="horovod"``. The second
one scales learning rates with the number of ranks, as Lightning's own Horovod strategy did. Knows
`torch`.
"""

from __future__ import annotations

from hvdtune.lightning.package import pl
from hvdtune.lightning.strategy import HvdtuneStrategy

__all__ = ["HvdtuneStrategy"]

HvdtuneStrategy.register_strategies(pl.strategies.StrategyRegistry)
