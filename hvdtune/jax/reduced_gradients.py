"""Gradients that are equal on all ranks: `jax.grad`, `value_and_grad`, an optax transformation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average, Sum
from hvdtune.faces.compression import Compressor
from hvdtune.jax.compression import Compression
from hvdtune.jax.mpi_ops import grouped_allreduce


@dataclass(frozen=True)
class _Reduction:
    """How a pytree of gradients is reduced: in one grouped allreduce."""

    name: str | None
    op: int
    compression: type[Compressor]
    gradient_predivide_factor: float
    process_set: ProcessSet

    def __post_init__(self) -> None:
        factor = self.gradient_predivide_factor
        if self.op not in (Average, Sum):
            raise ValueError("op must be Average or Sum: gradients are averaged or added.")
        if factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor is not supported with op != Average.")
        if not factor > 0:
            raise ValueError(f"gradient_predivide_factor={factor} must be > 0.")

    def __call__(self, gradients: Any) -> Any:
        leaves, structure = jax.tree.flatten(gradients)
        # JAX gives integers gradients without a value.
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype != jax.dtypes.float0]
        compressed = [self.compression.compress(leaves[i]) for i in places]
        reduced = grouped_allreduce(
            [leaf for leaf, _ in compressed],
            name=self.name,
            op=self.op,
            prescale_factor=1.0 / self.gradient_predivide_factor,
            postscale_factor=self.gradient_predivide_factor,
            process_set=self.process_set,
        )
        for i, leaf, (_, context) in zip(places, reduced, compressed, strict=True):
            leaves[i] = self.compression.decompress(leaf, context)
        return jax.tree.unflatten(structure, leaves)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    name: str | None = None,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad`, with gradients reduced over the ranks; the value is this rank's.

    Args:
        fun, argnums, has_aux, options: those of `jax.value_and_grad`.
        name: the name of the grouped allreduce.
        op: Average or Sum.
        compression: how gradients are sent: Compression.none, Compression.fp16, or a Compressor.
        gradient_predivide_factor: splits the averaging: 1/factor before the sum, factor/size after.
        process_set: the ranks.

    Raises ValueError for another `op`, and for a factor that is not positive or, with Sum, not 1.
    """
    reduce = _Reduction(name, op, compression, gradient_predivide_factor, process_set)
    local = jax.value_and_grad(fun, argnums=argnums, has_aux=has_aux, **options)

    @functools.wraps(local)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = local(*args, **kwargs)
        return value, reduce(gradients)

    return reduced


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.grad`, with gradients reduced over the ranks; arguments as for `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(both)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return reduced


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optax transformation: reduces gradients over the ranks, then does what `optimizer` does.

    Args:
        optimizer: an `optax.GradientTransformation`.
        name, op, compression, gradient_predivide_factor, process_set: as for `value_and_grad`.
        backward_passes_per_step: gradients of this many updates are averaged here first; the
            other updates are zero and nothing is sent, as with `optax.MultiSteps`.

    Give it gradients as `jax.grad` returns them, not those of this module's `grad`. Its state is
    that of `optimizer`, or `optax.MultiStepsState` around it.
    Raises ImportError without optax, TypeError for anything but a transformation, ValueError for
    the same arguments as `value_and_grad`.
    """
    try:
        import optax
    except ImportError as error:
        raise ImportError(
            "hvdtune.jax.DistributedOptimizer needs optax, which cannot be imported here "
            f"({error}). Install it with: pip install optax"
        ) from error
    if not (callable(getattr(optimizer, "init", None)) and hasattr(optimizer, "update")):
        raise TypeError(
            f"DistributedOptimizer takes an optax.GradientTransformation, not {optimizer!r}."
        )
    if operator.index(backward_passes_per_step) < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} must be > 0.")
    reduce = _Reduction(name, op, compression, gradient_predivide_factor, process_set)
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return inner.update(reduce(updates), state, params, **extra)

    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, update)

    def reduce_means(means: Any) -> Any:  # the function's name becomes part of the calls' names
        return reduce(means)

    def accumulate(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        is_last = state.mini_step == backward_passes_per_step - 1

        # MultiSteps calls it at every pass, and ignores all results but the last.
        def update_at_last(means: Any, inner_state: Any, params: Any = None, **extra: Any) -> Any:
            reduced = jax.lax.cond(is_last, reduce_means, lambda unchanged: unchanged, means)
            return inner.update(reduced, inner_state, params, **extra)

        return steps_of(update_at_last).update(updates, state, params, **extra)

    def steps_of(update: Callable[..., Any]) -> Any:
        distributed = optax.GradientTransformationExtraArgs(inner.init, update)
        return optax.MultiSteps(distributed, every_k_schedule=backward_passes_per_step)

    return optax.GradientTransformationExtraArgs(steps_of(update).init, accumulate)
