"""Small helpers of Horovod's TensorFlow modules, under Horovod's names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtune.core.libraries import built
from hvdtune.faces.buckets import split_evenly


def _executing_eagerly() -> bool:
    """Whether TensorFlow computes eagerly here, rather than building a graph."""
    return bool(tf.executing_eagerly())


def split_list(items: Sequence[Any], parts: int) -> list[list[Any]]:
    """``items`` in at most ``parts`` runs of nearly equal lengths; none is empty."""
    return [list(run) for run in split_evenly(items, parts)]


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether hvdtune takes tensors on a GPU here."""
    there = bool(built.cuda_built())
    if verbose:
        where = "GPUs" if there else "the CPU only"
        print(f"hvdtune takes {ext_base_name} tensors on {where}.")
    return there


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Raise NotImplementedError unless Adasum works with this number of ranks."""
    if num_rank <= 0 or num_rank & (num_rank - 1):
        raise NotImplementedError(
            f"op=Adasum needs a number of ranks that is a power of two, not {num_rank}."
        )


def keras_classes(name: str) -> tuple[type, ...]:
    """The classes ``name`` ("Variable", "Optimizer", "Layer") of each Keras that is loaded.

    That is Keras 3 and tf_keras, which has two classes of optimizers. An object of a class can
    exist only if its package is loaded, so nothing is imported for this.
    """
    places = {
        "Variable": ("",),
        "Optimizer": (".optimizers", ".optimizers.legacy"),
        "Layer": (".layers",),
    }
    found = []
    for package in ("keras", "tf_keras"):
        for place in places[name]:
            path = f"{package}{place}"
            module = sys.modules.get(path) or getattr(sys.modules.get(package), place[1:], None)
            one = getattr(module, name, None)
            if isinstance(one, type):
                found.append(one)
    return tuple(found)


def value_of(variable: Any) -> Any:
    """TensorFlow's variable of a Keras 3 variable; any other variable itself."""
    is_of_keras = isinstance(variable, keras_classes("Variable"))
    return variable.value if is_of_keras else variable


def key_of(variable: Any) -> int:
    """A key for a variable: the same for a Keras variable and the one it holds."""
    return id(value_of(variable))
