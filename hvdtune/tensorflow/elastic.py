"""Elastic training with TensorFlow: ``hvd.elastic``.

state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)

@hvd.elastic.run
def train(state):
    ...
    state.commit()

train(state)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.core.process_sets import global_process_set
from hvdtune.core.world import rank
from hvdtune.elastic import ObjectState, State, run_translated
from hvdtune.faces.gradients import drop_waiting_gradients
from hvdtune.tensorflow.calls.operations import COLLECTIVES
from hvdtune.tensorflow.functions import broadcast_object, broadcast_values
from hvdtune.tensorflow.util import key_of, value_of

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]

# The errors that TensorFlow raises if a job is lost; XLA turns all errors into the last.
_OF_A_LOST_JOB = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.InternalError)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for ``func(state, …)``: training that starts over when the job has changed.

    If a collective fails because a rank is gone or the job was shut down, the state returns to its
    last commit and ``shutdown()`` and ``init()`` join the job anew; if hosts have changed, the
    current state is kept. Then the reset callbacks run, the state becomes that of rank 0, and
    ``func`` is called again. Only the state survives. Any other error ends training, also if the
    ranks disagree about a tensor.
    """

    return run_translated(
        func, lambda error: isinstance(error, _OF_A_LOST_JOB) and is_of_collective(error)
    )


def is_of_collective(error: tf.errors.OpError) -> bool:
    """Whether one of hvdtune's operations failed because its job did.

    TensorFlow's text contains the operation's type; that of XLA's calls begins with our name.
    """
    if isinstance(error, tf.errors.InternalError):
        return "hvdtune: " in error.message
    text = f"{error.message} {error.op.type if error.op is not None else ''}"
    return any(name in text for name in (*COLLECTIVES, "HorovodJoin"))


class _VariableState(ObjectState):
    """Variables, with a copy of their values, and objects."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}  # variable and value, by key_of the variable
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **objects)
        self._save_variables()

    def save(self) -> None:
        """Copy the variables' values, and note the objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Restore everything from its last copy. Variables made since then keep their values."""
        saved = list(self._saved.values())
        self._write([variable for variable, _ in saved], [value for _, value in saved])
        super().restore()

    def sync(self) -> None:
        """Make everything on all ranks equal to rank 0's, and save that."""
        variables = self._variables()
        own = self._read(variables)
        values = broadcast_values(own, 0, global_process_set, "elastic.variables")
        self._write(variables, values)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        variables = self._variables()
        pairs = zip(variables, self._read(variables), strict=True)
        self._saved = {key_of(variable): (variable, value) for variable, value in pairs}

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def _read(self, variables: list[Any]) -> list[Any]:
        return [np.array(value_of(variable).numpy()) for variable in variables]

    def _write(self, variables: list[Any], values: list[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            value_of(variable).assign(value)


class TensorFlowKerasState(_VariableState):
    """The state of a Keras model's weights and its optimizer, on the TensorFlow backend.

    model: must be built. optimizer: the model's own, if None; its variables are created here, so
    that the saved and synchronised state is complete. backend: ignored; Horovod has it. Every other
    keyword becomes an attribute, an object as in ``ObjectState``.

    Raises ValueError for a model that has not been built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not getattr(model, "built", False):
            raise ValueError("Model must be built first: call model.build(input_shape).")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        _build(self.optimizer, model.trainable_variables)
        super().__init__(kwargs)

    def reset(self) -> None:
        """Drop gradients that wait for tf-keras' ``backward_passes_per_step``.

        A process that is new in the job has none.
        """
        drop_waiting_gradients(self.optimizer)

    def _variables(self) -> list[Any]:
        optimizer = getattr(self.optimizer, "variables", [])
        # A property of Keras 3's optimizers, a method of older ones.
        # Not the model's `variables`: Keras 3 has the states of random seeds there, and ranks with
        # the same seeds would drop the same units.
        every = [*self.model.weights, *(optimizer() if callable(optimizer) else optimizer)]
        return list({key_of(variable): variable for variable in every}.values())


class TensorFlowState(_VariableState):
    """The state of any variables: in eager mode, or in a graph that a session runs.

    variables: in a graph all global ones, if None. session: the default one, if None. Every other
    keyword becomes an attribute, an object as in ``ObjectState``.

    Raises ValueError in eager mode without variables, in a graph without a session.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self.session = session
        if not tf.executing_eagerly():
            self.session = session or tf.compat.v1.get_default_session()
            if self.session is None:
                raise ValueError(
                    "TensorFlowState: in a graph, pass session=… or make the state inside `with "
                    "session.as_default():`."
                )
            variables = tf.compat.v1.global_variables() if variables is None else variables
        elif variables is None:
            raise ValueError("TensorFlowState: pass the variables; eager mode has no list of them.")
        self.variables = list(variables)
        super().__init__(kwargs)

    def _variables(self) -> list[Any]:
        return self.variables

    def _read(self, variables: list[Any]) -> list[Any]:
        return super()._read(variables) if self.session is None else self.session.run(variables)

    def _write(self, variables: list[Any], values: list[Any]) -> None:
        if self.session is None:
            super()._write(variables, values)
            return
        # Feeds the initialisers, so that a finished graph need not grow. Variables initialised from
        # the same tensor are fed one after the other.
        left = list(zip(variables, values, strict=True))
        while left:
            fed, initializers, later = {}, [], []
            for variable, value in left:
                initial = variable.initializer.inputs[1]
                if initial in fed:
                    later.append((variable, value))
                    continue
                fed[initial] = value
                initializers.append(variable.initializer)
            self.session.run(initializers, fed)
            left = later


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Create the optimizer's variables, if it has none yet."""
    if optimizer is None or getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        return
    build = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if build is not None:
        build(variables)
