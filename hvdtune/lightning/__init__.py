"""hvdtune for PyTorch Lightning: a strategy that trains with one process per rank.

    from hvdtune.lightning import HvdtuneStrategy
    trainer = Trainer(strategy=HvdtuneStrategy(), accelerator="cpu", devices=1)

Importing this module also makes ``strategy="hvdtune"`` known, and ``strategy="horovod"``, which
scales learning rates with the number of ranks as Lightning's own Horovod strategy did.
"""

from __future__ import annotations

from hvdtune.lightning.package import pl
from hvdtune.lightning.strategy import HvdtuneStrategy

__all__ = ["HvdtuneStrategy"]

HvdtuneStrategy.register_strategies(pl.strategies.StrategyRegistry)
