"""The state of a job that trains with Keras: a model, its optimizer, and any other objects."""

from __future__ import annotations

from typing import Any

from hvdtune.core.objects import broadcast_object
from hvdtune.core.world import rank
from hvdtune.elastic import ObjectState
from hvdtune.faces.gradients import drop_waiting_gradients
from hvdtune.keras.variables import (
    Array,
    broadcast_variables,
    build_optimizer,
    is_model_built,
    optimizer_variables,
    seeds_of,
    value_of,
    weights_of,
)


class KerasState(ObjectState):
    """A built model, its optimizer, and any picklable objects as attributes.

    optimizer: the model's own by default. backend: ignored; Horovod has it. Raises
    ValueError for a model that is not built yet.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        self._check_names({**kwargs, "model": model, "optimizer": optimizer})
        if not is_model_built(model):
            raise ValueError(
                "Model must be built first. Run `model.build(input_shape)`, or call it once."
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None:
            build_optimizer(self.optimizer, model)
        self._saved: list[tuple[Any, Array]] = []
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self) -> None:
        """Copy the variables, and note the objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Restore the variables and objects from their last copy."""
        for variable, value in self._saved:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Make everything on all ranks equal to rank 0's, and save that."""
        broadcast_variables(self._variables(), root_rank=0)
        self._save_variables()
        super().sync()

    def reset(self) -> None:
        """Make Keras build its training step anew: a compiled one has the old job's size and names.

        Does nothing for models that `fit` has not trained. With tf-keras, gradients that wait for
        `backward_passes_per_step` are dropped, because a process that is new in the job has none.
        """
        drop_waiting_gradients(self.optimizer)
        if getattr(self.model, "train_function", None) is not None:
            self.model.make_train_function(force=True)

    def _variables(self) -> list[Any]:
        variables = weights_of(self.model)
        if self.optimizer is not None:
            variables += optimizer_variables(self.optimizer)
        return variables

    def _save_variables(self) -> None:
        # Seeds are each rank's own, so nobody broadcasts them. But on JAX, a step that fails leaves
        # their variables without values, like all that it got.
        variables = [*self._variables(), *seeds_of(self.model)]
        self._saved = [(variable, value_of(variable)) for variable in variables]
