"""Loss scaling: ranks skip a step together.

`compile` puts the optimizer into a `LossScaleOptimizer` if the model computes in float16. The
latter skips the step if a gradient of its own process is not finite, and the other ranks would
wait for it. So it asks all ranks, provided that the optimizer inside is a distributed one.
"""

from __future__ import annotations

from typing import Any

import keras


def ask_all_ranks() -> None:
    """Make loss-scaling optimizers around a distributed one ask all ranks; once per process."""
    cls = keras.optimizers.LossScaleOptimizer
    original = cls.check_finite
    if getattr(original, "asks_all_ranks", False):
        return

    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        reduction = getattr(self.inner_optimizer, "_reduction", None)
        return finite if reduction is None else reduction.agree_all(finite)

    check_finite.asks_all_ranks = True  # type: ignore[attr-defined]
    cls.check_finite = check_finite
