"""How a distributed optimizer of Keras 3 differs from the wrapped one, on any backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from keras import ops

from hvdtune.core.observation import marks
from hvdtune.keras import backends
from hvdtune.keras.gradients import GradientReduction
from hvdtune.keras.package import backend_name
from hvdtune.keras.variables import CallableList


class Passes:
    """How many gradients add up before one step; Horovod's `_agg_helper`."""

    def __init__(self, optimizer: Any, number: int, averages: bool) -> None:
        self._optimizer = optimizer
        self.backward_passes_per_step = number
        self.average_aggregated_gradients = averages

    @property
    def counter(self) -> Any:
        """How many are waiting: an integer scalar of the backend (in Horovod, of TensorFlow)."""
        return ops.mod(self._optimizer._iterations.value, self.backward_passes_per_step)


class DistributedHook:
    """Precedes the wrapped class in the method resolution order.

    Without accumulation, `apply` reduces the gradients it gets. With Keras' accumulation
    (`gradient_accumulation_steps`, which `backward_passes_per_step` sets) they are reduced once per
    step, just before Keras clips what has accumulated.
    """

    _reduction: GradientReduction | None = None  # while the wrapped class' constructor runs
    _agg_helper: Passes | None = None
    _is_applying = False
    _hides_accumulators = False

    @classmethod
    def from_config(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        """A distributed optimizer with this class's settings."""
        optimizer = super().from_config(config, *args, **kwargs)  # type: ignore[misc]
        cls._distribute(optimizer)
        return optimizer

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        """The wrapped optimizer's `apply`, with reduced gradients. Collective."""
        grads = list(grads)
        if not grads:
            return
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        variables = list(variables)
        if not self.gradient_accumulation_steps and len(variables) == len(grads):
            grads = self._reduction(grads, variables)
        self._is_applying = True
        try:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        finally:
            self._is_applying = False
        self._mark_step(grads)

    def apply_gradients(self: Any, grads_and_vars: Any, *_obsolete: Any, **_obsoletes: Any) -> Any:
        """The wrapped optimizer's; `name` and Keras 2's other arguments are ignored."""
        return super().apply_gradients(list(grads_and_vars))  # type: ignore[misc]

    def register_local_var(self: Any, var: Any) -> None:
        """Do not reduce the gradient of the variable `var`."""
        self._reduction.keep_local(var)

    @property
    def process_set(self: Any) -> Any:
        """The ranks whose gradients are reduced together."""
        return self._reduction.process_set

    @property
    def scale_local_gradients(self: Any) -> bool:
        """Whether gradients of local variables are divided by the number of ranks."""
        return bool(self._reduction.scale_local_gradients)

    @property
    def variables(self: Any) -> CallableList:
        """The wrapped optimizer's, as a list that can also be called."""
        every = super().variables  # type: ignore[misc]
        if self._hides_accumulators:
            hidden = {id(variable) for variable in self._accumulated_gradients}
            every = [variable for variable in every if id(variable) not in hidden]
        return CallableList(every)

    @property
    def iterations(self: Any) -> Any:
        """Steps; with `backward_passes_per_step`, which Keras does not know, calls of `apply`.

        Inside a step, the update sees the number of updates, from which Adam corrects its moments.
        """
        if self._agg_helper is not None and not self._is_applying:
            return self._iterations
        return super().iterations  # type: ignore[misc]

    def get_config(self: Any) -> dict[str, Any]:
        """The wrapped optimizer's: it contains nothing of hvdtune."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        if self._agg_helper is not None:
            config["gradient_accumulation_steps"] = None
        return config

    def save_own_variables(self: Any, store: Any) -> None:
        """The wrapped optimizer's, without gradients that wait for `backward_passes_per_step`."""
        with self._as_wrapped():
            super().save_own_variables(store)  # type: ignore[misc]

    def load_own_variables(self: Any, store: Any) -> None:
        """The wrapped optimizer's."""
        with self._as_wrapped():
            super().load_own_variables(store)  # type: ignore[misc]

    @contextmanager
    def _as_wrapped(self) -> Iterator[None]:
        self._hides_accumulators = self._agg_helper is not None and hasattr(
            self, "_accumulated_gradients"
        )
        try:
            yield
        finally:
            self._hides_accumulators = False

    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> None:
        # Not an attribute of the optimizer: Keras would track these as its own variables.
        self._reduction.accumulating = list(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self: Any, grads: Any) -> Any:
        if self.gradient_accumulation_steps:
            grads = self._reduced_accumulation(list(grads))
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _reduced_accumulation(self: Any, grads: list[Any]) -> list[Any]:
        """The mean of accumulated gradients, or their sum, reduced in the step that uses it."""
        helper, variables = self._agg_helper, self._reduction.accumulating
        if helper is not None and not helper.average_aggregated_gradients:
            grads = [gradient * helper.backward_passes_per_step for gradient in grads]
        if backend_name() != "jax":
            return list(self._reduction(grads, variables))
        # On JAX, Keras computes an update at every call and drops those before the last.
        is_step = (self._iterations + 1) % self.gradient_accumulation_steps == 0
        return list(ops.cond(is_step, lambda: self._reduction(grads, variables), lambda: grads))

    def _backend_reset_gradient_accumulators(self: Any) -> None:
        # PyTorch's backend multiplies by zero, which would keep an infinity for all later steps.
        for accumulator in self._accumulated_gradients:
            if accumulator is not None:
                accumulator.assign(ops.zeros(accumulator.shape, dtype=accumulator.dtype))

    def _mark_step(self: Any, grads: Sequence[Any]) -> None:
        """Tell the recording that a step ends, if Python runs at every step."""
        first = next((gradient for gradient in grads if gradient is not None), None)
        if first is None or backends.current().is_traced(first):
            return
        every = self.gradient_accumulation_steps
        if not every or int(ops.convert_to_numpy(self._iterations)) % every == 0:
            marks.step_ended(self)


def prepare(optimizer: Any, reduction: GradientReduction, passes: int, averages: bool) -> None:
    """Give a new optimizer of a distributed class what it needs."""
    optimizer._reduction = reduction
    if passes > 1:
        optimizer._agg_helper = Passes(optimizer, passes, averages)
        optimizer.gradient_accumulation_steps = passes
