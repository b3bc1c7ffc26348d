"""JAX's arrays in host memory, as the engine takes and returns them: NumPy's, and bfloat16."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdtune.arrays.adapter import Array, ArrayAdapter
from hvdtune.core import operations
from hvdtune.core.operations import Buffer
from hvdtune.faces.collectives import Collectives

_BFLOAT16 = np.dtype(jnp.bfloat16)


class HostAdapter(ArrayAdapter):
    """See `faces.adapter.Adapter`."""

    def __init__(self) -> None:
        super().__init__()
        self.codes[_BFLOAT16] = operations.DTYPES["bfloat16"]

    def buffer(self, tensor: Array, operation: str, *, written: bool = False) -> Buffer:
        """The array's memory. Raises ValueError for a type that the engine does not have."""
        check_dtype(tensor.dtype, operation)
        return super().buffer(tensor, operation, written=written)

    def result(self, tensor: Array, output: Any) -> Array:
        """An output of the engine as an array of the type of `tensor`."""
        array = super().result(tensor, output)
        return array.view(_BFLOAT16) if tensor.dtype == _BFLOAT16 else array


adapter = HostAdapter()
collectives = Collectives(adapter, __name__, "collectives")


def check_dtype(dtype: Any, operation: str) -> None:
    """Raise ValueError for a type that the engine does not have."""
    if dtype not in adapter.codes:
        raise ValueError(
            f"Tensor type {dtype} is not supported. {operation} takes "
            f"{', '.join(operations.DTYPES)}."
        )


def on_host(array: Any) -> Array:
    """The values of a concrete JAX array, in C order; they must not be written."""
    return np.ascontiguousarray(np.asarray(array)).reshape(np.shape(array))


def _as_array(leaf: Any) -> jax.Array:
    if isinstance(leaf, jax.Array):
        return leaf
    # `jnp.asarray` compiles a program for each new shape. The result may share the caller's memory:
    # nobody keeps it after the call.
    array: jax.Array = jax.device_put(leaf) if isinstance(leaf, np.ndarray) else jnp.asarray(leaf)
    return array


def leaves_of(tree: Any, operation: str) -> tuple[list[Any], Any]:
    """The arrays and the structure of a pytree. Raises ValueError or TypeError for other leaves."""
    found, structure = jax.tree.flatten(tree)
    leaves = []
    for index, leaf in enumerate(found):
        try:
            array = _as_array(leaf)
        except TypeError:
            raise TypeError(
                f"{operation} takes arrays and pytrees of them, not a {type(leaf).__name__}."
            ) from None
        try:
            check_dtype(array.dtype, operation)
        except ValueError as error:
            member = f"Member {index} of the group: " if len(found) > 1 else ""
            raise ValueError(f"{member}{error}") from None
        leaves.append(array)
    return leaves, structure
