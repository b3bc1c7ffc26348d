"""hvdtune for PyTorch Lightning: `Trainer(strategy=HvdtuneStrategy())`, one process per rank.

Importing this module also makes ``strategy="hvdtune"`` known, and ``strategy="horovod"``, which
scales learning rates with the number of ranks as Lightning's own Horovod strategy did. Knows
`torch`.
"""

from __future__ import annotations

from hvdtune.lightning.package import pl
from hvdtune.lightning.strategy import HvdtuneStrategy

__all__ = ["HvdtuneStrategy"]

HvdtuneStrategy.register_strategies(pl.strategies.StrategyRegistry)
