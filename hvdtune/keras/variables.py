"""Variables of models and optimizers, on any backend, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdtune import arrays
from hvdtune.core.objects import allgather_object
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.faces.broadcast import finish_all
from hvdtune.keras.package import backend_name

Array = npt.NDArray[Any]


class CallableList(list[Any]):
    """A list that returns itself when it is called: `variables` and `variables()` both work."""

    def __call__(self) -> CallableList:
        """The list itself."""
        return self


def value_of(variable: Any) -> Array:
    """A copy of the variable's current value."""
    if backend_name() == "torch":
        variable = variable.value.detach().cpu()
        if str(variable.dtype) == "torch.bfloat16":  # NumPy has no dtype for it
            variable = variable.float()
    return np.array(variable.numpy() if hasattr(variable, "numpy") else variable)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Assign to every variable its value on global rank `root_rank`. Collective.

    `variables`: Keras' or TensorFlow's, of any dtype, in the same order on all ranks. If shapes or
    dtypes differ, raises ValueError on all ranks, naming the first that differs; then nothing has
    been assigned.
    """
    variables = list(variables)
    values = [value_of(variable) for variable in variables]
    _check_equal(variables, values, process_set)
    # Sent as bytes: variables may have dtypes that no reduction takes.
    parts = [np.frombuffer(bytearray(value.tobytes()), np.uint8) for value in values]
    handles = [
        arrays.broadcast_async_(
            part, root_rank, name=f"broadcast_variables.{index}", process_set=process_set
        )
        for index, part in enumerate(parts)
        if part.size
    ]
    finish_all([lambda handle=handle: arrays.synchronize(handle) for handle in handles])  # type: ignore[misc]
    for variable, value, part in zip(variables, values, parts, strict=True):
        variable.assign(part.view(value.dtype).reshape(value.shape))


def weights_of(model: Any) -> list[Any]:
    """A model's weights: what is saved with it, without metrics and the states of random seeds.

    On JAX, in the middle of an epoch, it first fetches their newest values from the trainer.
    """
    synchronise = getattr(model, "jax_state_sync", None)
    if synchronise is not None:
        synchronise()
    return list(model.weights)


def seeds_of(model: Any) -> list[Any]:
    """The states of a model's random seeds: its variables that are not weights."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """All variables of an optimizer of any Keras."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def is_model_built(model: Any) -> bool:
    """Whether it has its weights already."""
    return bool(getattr(model, "built", False)) and bool(model.weights)


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Create the optimizer's variables for the model's, unless it has them already."""
    if getattr(optimizer, "built", False) or getattr(optimizer, "_built", False):
        return
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(model.trainable_variables)


def _check_equal(
    variables: Sequence[Any], values: Sequence[Array], process_set: ProcessSet
) -> None:
    own = [
        (str(getattr(variable, "path", None) or variable.name), value.shape, str(value.dtype))
        for variable, value in zip(variables, values, strict=True)
    ]
    every = allgather_object(own, name="broadcast_variables", process_set=process_set)
    ranks = process_set.ranks or range(len(every))
    first = ranks[0]
    for rank, others in zip(ranks, every, strict=True):
        if len(others) != len(every[0]):
            raise ValueError(
                f"broadcast_variables: rank {rank} has {len(others)} variables, rank {first} has "
                f"{len(every[0])}; all ranks pass the same."
            )
        for here, there in zip(others, every[0], strict=True):
            if here[1:] != there[1:]:
                raise ValueError(
                    f"broadcast_variables: {here[0]} has shape {here[1]} and dtype {here[2]} on "
                    f"rank {rank}, {there[1]} and {there[2]} on rank {first}."
                )
