"""Makes an optimizer a distributed one.

The class of the distributed optimizer derives from the wrapped one's and has its name and module,
so that models saved with it load without hvdtune. The class also holds the settings of its
optimizers, so that its `from_config` makes distributed ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average
from hvdtune.keras.compression import Compression
from hvdtune.keras.gradients import GradientReduction, check_arguments
from hvdtune.keras.package import LEGACY, backend_name, keras


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A new optimizer like `optimizer` that reduces gradients over the ranks before it uses them.

    It is made from the configuration of `optimizer`, which stays as it is; the current values of
    `optimizer`'s variables are not copied. `from_config` of its class makes another one. Gradients
    are reduced wherever they are applied: in `fit`, `apply_gradients` and `apply`, unless hvdtune
    has reduced them before. All gradients of a step are one group; `num_groups` or `groups` (a
    number, or lists of variables) ask for several.

    name: the gradients' name in messages between ranks; `Distributed<Class>` by default.
    device_dense, device_sparse: ignored; Horovod has them.
    sparse_as_dense: make TensorFlow's IndexedSlices dense first, instead of gathering their rows.
    gradient_predivide_factor: divide by it before the sum over ranks, and by the rest after it.
    op: Average or Sum.
    backward_passes_per_step: reduce and apply the sum of this many gradients, or their mean
    (`average_aggregated_gradients`). Keras' own `gradient_accumulation_steps` works likewise.
    scale_local_gradients: divide gradients of local variables (`register_local_var`) by the number
    of ranks.

    Raises ValueError for arguments that contradict each other, or that loss scaling does not allow
    on tf-keras (at the first step, if loss scaling is added later); TypeError for anything but an
    optimizer of the Keras in use.
    """
    checked = check_arguments(op, gradient_predivide_factor, num_groups, groups)
    if (
        isinstance(backward_passes_per_step, bool)
        or not isinstance(backward_passes_per_step, int)
        or backward_passes_per_step <= 0
    ):
        raise ValueError(
            f"backward_passes_per_step must be > 0, an integer, not {backward_passes_per_step!r}."
        )
    _check_optimizer(optimizer)
    inner = getattr(optimizer, "inner_optimizer", None)
    reduction = GradientReduction(
        name or f"Distributed{type(optimizer if inner is None else inner).__name__}",
        op,
        float(gradient_predivide_factor),
        compression,
        sparse_as_dense,
        checked,
        process_set,
        scale_local_gradients,
    )

    def wrap(plain: Any) -> Any:
        return _wrap(plain, reduction, backward_passes_per_step, average_aggregated_gradients)

    if inner is None:
        return wrap(optimizer)
    config = optimizer.get_config()
    if LEGACY:
        from hvdtune.keras.optimizer import legacy

        legacy.refuse_with_loss_scaling(backward_passes_per_step, op)
        return type(optimizer).from_config({**config, "inner_optimizer": wrap(inner)})
    scaling = type(optimizer).from_config(config)
    scaling.inner_optimizer = wrap(inner)
    return scaling


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer` that leaves the gradients of `local_layers` to each rank.

    `local_layers`: a built layer, or several. Raises ValueError for anything else.
    """
    layers = [] if local_layers is None else local_layers
    if isinstance(layers, keras.layers.Layer) or not isinstance(layers, Iterable):
        layers = [layers]
    layers = list(layers)
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    distributed = DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            getattr(distributed, "inner_optimizer", distributed).register_local_var(variable)
    return distributed


def is_distributed(optimizer: Any) -> bool:
    """Whether it, or the optimizer inside it, reduces gradients."""
    innermost = getattr(optimizer, "inner_optimizer", None) or optimizer
    return getattr(innermost, "_reduction", None) is not None


def _check_optimizer(optimizer: Any) -> None:
    bases = [keras.optimizers.Optimizer]
    if LEGACY:
        bases += [keras.optimizers.legacy.Optimizer, keras.mixed_precision.LossScaleOptimizer]
    if not isinstance(optimizer, tuple(bases)):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of {keras.__name__}, not a "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}; tf-keras is used if "
            "TF_USE_LEGACY_KERAS=1 is set, and Keras 3 if not."
        )
    if is_distributed(optimizer):
        raise ValueError("DistributedOptimizer: this optimizer is a distributed one already.")


def _wrap(plain: Any, reduction: GradientReduction, passes: int, averages: bool) -> Any:
    prepare: Callable[[Any, GradientReduction, int, bool], None]
    if LEGACY:
        from hvdtune.keras.optimizer import legacy

        prepare = legacy.prepare
    else:
        from hvdtune.keras.optimizer import hook, loss_scaling

        if passes > 1 and plain.gradient_accumulation_steps:
            raise ValueError(
                "The optimizer has gradient_accumulation_steps already; give it or "
                "backward_passes_per_step, not both."
            )
        loss_scaling.ask_all_ranks()
        prepare = hook.prepare

    def distribute(optimizer: Any) -> None:
        prepare(optimizer, reduction.copy(), passes, averages)

    return _class_of(type(plain), distribute).from_config(plain.get_config())


def _class_of(wrapped: type, distribute: Callable[[Any], None]) -> Any:
    """A distributed subclass of an optimizer class; `distribute` prepares each new optimizer."""
    hooks: tuple[type, ...]
    if LEGACY:
        from hvdtune.keras.optimizer import legacy

        hooks = (legacy.hook_of(wrapped),)
    else:
        from hvdtune.keras.optimizer.hook import DistributedHook

        hooks = (DistributedHook,)
        if backend_name() == "tensorflow":
            from hvdtune.keras.optimizer.tensorflow_api import TensorFlowHook

            hooks = (TensorFlowHook, DistributedHook)
    return type(
        wrapped.__name__,
        (*hooks, wrapped),
        {
            "__module__": wrapped.__module__,
            "__qualname__": wrapped.__qualname__,
            "__doc__": wrapped.__doc__,
            "_distribute": staticmethod(distribute),
        },
    )
