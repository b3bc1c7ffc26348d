"""Loads saved models so that their training continues over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvdtune.keras.compression import Compression
from hvdtune.keras.optimizer import DistributedOptimizer, is_distributed
from hvdtune.keras.package import keras
from hvdtune.keras.variables import build_optimizer, optimizer_variables, value_of


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """The model saved in `filepath`, with its optimizer made a distributed one.

    The optimizer keeps the values that Keras has loaded for it (Keras 3 loads none from .h5 files).
    custom_optimizers: classes of optimizers that Keras does not know. custom_objects: as in
    `keras.models.load_model`; they take precedence. legacy_opts: ignored; Horovod has it, but the
    file says what kind of optimizer it is. A model that was saved without an optimizer is returned
    without one.
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or is_distributed(optimizer):
        return model
    distributed = DistributedOptimizer(optimizer, compression=compression)
    build_optimizer(optimizer, model)
    build_optimizer(distributed, model)
    new, old = optimizer_variables(distributed), optimizer_variables(optimizer)
    if len(new) == len(old):  # Keras 3 makes too few of them when it reads .h5 files
        for variable, saved in zip(new, old, strict=True):
            variable.assign(value_of(saved))
    model.optimizer = distributed
    return model
