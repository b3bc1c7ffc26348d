"""Loss scaling: ranks leave out a step together.

`compile` puts the optimizer into a `LossScaleOptimizer` if the model computes in float16. That one
leaves out the step if a gradient of its own process is not finite: the others would wait for it.
So it asks all ranks wherever the optimizer in it is a distributed one.
"""

from __future__ import annotations

from typing import Any

import keras


def ask_all_ranks() -> None:
    """Have every loss scaling optimizer of a distributed one ask; done once a process."""
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
