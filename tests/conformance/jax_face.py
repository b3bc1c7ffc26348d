"""The JAX face: ``import hvdtune.jax``, outside ``jax.jit``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from conformance import program
from conformance.face import DIFFERENTIABLE, Face

import hvdtune.jax

jax.config.update("jax_enable_x64", True)  # else there are no 64-bit types


class JaxFace(Face):
    name = "jax"
    hvd = hvdtune.jax
    kind = jax.Array
    narrow = True
    forms = DIFFERENTIABLE
    takes = ("no tensor",)  # a list of numbers is a pytree
    autodiff = True

    def container(self, form: str) -> type:
        return list  # as they are given

    def tensor(self, values: np.ndarray, dtype: str) -> Any:
        return jax.device_put(values.astype(jnp.dtype(dtype)))  # NumPy's cast: JAX compiles one

    def values(self, tensor: Any) -> np.ndarray:
        found = np.array(tensor)
        return found.astype(np.float32) if tensor.dtype == jnp.bfloat16 else found

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype)

    def pull_back(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        inputs: Sequence[Any],
        weights: Callable[[int, tuple[int, ...]], np.ndarray],
    ) -> list[np.ndarray]:
        outputs, back = jax.vjp(lambda leaves: list(call(leaves)), list(inputs))
        given = [
            jnp.asarray(weights(i, out.shape)).astype(out.dtype) for i, out in enumerate(outputs)
        ]
        return [np.array(gradient) for gradient in back(given)[0]]


FACE = JaxFace()


def run(blocks: tuple[str, ...], thorough: bool = False) -> Any:
    """The rank program."""
    return program.run(FACE, blocks, thorough)
