"""How an optimizer's gradients are reduced: by default as one group per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

from hvdtune.core import job, world
from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Average, Min, Sum
from hvdtune.faces import reduced
from hvdtune.faces.buckets import Groups, split_evenly
from hvdtune.keras import backends
from hvdtune.keras.package import backend_name


class _Job:
    """The current job, or the next one."""

    # Numbers of optimizers, by their names and their sets' ranks (None: all ranks of the job).
    numbers: ClassVar[dict[tuple[tuple[int, ...] | None, str], count[int]]] = {}


def _begin_job() -> None:
    # A new object shows optimizers that outlive a job that they need a new number.
    _Job.numbers = {}


job.add_lifecycle_hook(_begin_job, lambda: None)


@dataclass
class GradientReduction:
    """How one optimizer's gradients are reduced. It is collective only when called."""

    name: str
    op: int
    gradient_predivide_factor: float
    compression: Any
    sparse_as_dense: bool
    groups: Groups | None
    process_set: ProcessSet
    scale_local_gradients: bool
    accumulating: Sequence[Any] = ()  # the variables whose accumulated gradients are next
    _local: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _wire_name: tuple[Any, str] = (None, "")  # the numbers of its job, and the name

    def copy(self) -> GradientReduction:
        """A reduction for another optimizer, with the same settings and local variables."""
        return replace(self, accumulating=(), _wire_name=(None, ""))

    def keep_local(self, variable: Any) -> None:
        """Do not reduce the gradient of `variable` from now on."""
        for key in _keys(variable):  # the objects are kept, so that their ids are not reused
            self._local[key] = variable, getattr(variable, "_value", None)

    def is_local(self, variable: Any) -> bool:
        """Whether its gradient is not reduced."""
        return any(key in self._local for key in _keys(variable))

    @property
    def is_needed(self) -> bool:
        """Whether there are other ranks to reduce gradients with."""
        if self.process_set.process_set_id == 0:
            return world.size() > 1
        return bool(self.process_set.included()) and (self.process_set.size() or 1) > 1

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of `variables` (None if there is none), reduced. Collective.

        Gradients that were reduced already are not changed. Those of local variables are not
        reduced, but divided by the number of ranks if `scale_local_gradients` is set. Raises
        HorovodInternalError, or the backend's form of it, if the ranks' gradients differ in number,
        dtype or shape.
        """
        results = list(gradients)
        if not self.is_needed:
            return results
        backend = backends.current()
        dense, sparse = [], []
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None or reduced.is_marked(gradient):
                continue
            if self.is_local(variable):
                if self.scale_local_gradients:
                    if self.sparse_as_dense:
                        gradient = backend.dense(gradient)
                    results[index] = backend.divided(gradient, self.process_set.size() or 1)
            elif backend.is_sparse(gradient) and not self.sparse_as_dense:
                sparse.append(index)
            else:
                dense.append(index)
        for number, group in enumerate(self._groups(dense, variables)):
            tensors = self._allreduce([backend.dense(results[i]) for i in group], number)
            for index, tensor in zip(group, tensors, strict=True):
                results[index] = tensor
        if sparse:
            entries = backend.sparse_allreduce(
                [results[i] for i in sparse], self.wire_name, self.op, self.process_set
            )
            for index, tensor in zip(sparse, entries, strict=True):
                results[index] = tensor
        return results

    def agree_all(self, flag: Any) -> Any:
        """A boolean tensor: whether the boolean tensor `flag` is true on all ranks. Collective."""
        if not self.is_needed:
            return flag
        backend = backends.current()
        number = backend.cast(flag, "int32")
        (least,) = backend.grouped_allreduce(
            [number], f"{self.wire_name}.finite", Min, 1.0, 1.0, self.process_set
        )
        return backend.cast(least, "bool")

    @property
    def wire_name(self) -> str:
        """The name of these gradients in messages between ranks.

        If a second optimizer of this job has the same name and process set, it is `<name>#2`, and
        so on: the ranks of a set must train with the same optimizers in the same order.
        """
        numbers, name = self._wire_name
        if numbers is not _Job.numbers:
            members = self.process_set
            ranks = None if members.process_set_id == 0 else tuple(members.ranks or ())
            number = next(_Job.numbers.setdefault((ranks, self.name), count(1)))
            name = self.name if number == 1 else f"{self.name}#{number}"
            self._wire_name = _Job.numbers, name
        return name

    def _allreduce(self, tensors: list[Any], number: int) -> list[Any]:
        factor = self.gradient_predivide_factor if self.op == Average else 1.0
        compressed = [self.compression.compress(tensor) for tensor in tensors]
        suffix = f".{number}" if number else ""
        results = backends.current().grouped_allreduce(
            [tensor for tensor, _ in compressed],
            f"{self.wire_name}.gradients{suffix}",
            self.op,
            1.0 / factor,
            factor,
            self.process_set,
        )
        return [
            self.compression.decompress(tensor, context)
            for tensor, (_, context) in zip(results, compressed, strict=True)
        ]

    def _groups(self, indices: list[int], variables: Sequence[Any]) -> list[Sequence[int]]:
        """The indices of gradients that are reduced together; no group is empty."""
        if not indices:
            return []
        if self.groups is None:
            return [indices]
        if isinstance(self.groups, int):
            return split_evenly(indices, self.groups)
        group_of = {
            key: number
            for number, group in enumerate(self.groups)
            for variable in group
            for key in _keys(variable)
        }
        groups: dict[int, list[int]] = {}
        for index in indices:
            numbers = [group_of[key] for key in _keys(variables[index]) if key in group_of]
            groups.setdefault(numbers[0] if numbers else -1 - index, []).append(index)
        return list(groups.values())


def check_arguments(
    op: int, gradient_predivide_factor: float, num_groups: int, groups: Any
) -> Groups | None:
    """The groups. Raises ValueError for arguments that are invalid or contradict each other."""
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor <= 0:
        raise ValueError(
            f"gradient_predivide_factor must be positive, not {gradient_predivide_factor}."
        )
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"num_groups must be a number of groups, or 0, not {num_groups!r}.")
    if groups is None:
        return num_groups or None
    if isinstance(groups, int):
        if isinstance(groups, bool) or groups <= 0:
            raise ValueError(
                "groups should be a positive integer or a list of lists of variables, "
                f"not {groups}."
            )
        return groups
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, list | tuple) for group in groups
    ):
        raise ValueError(
            f"groups should be a positive integer or a list of lists of variables, not {groups!r}."
        )
    keys = [id(variable) for group in groups for variable in group]
    if len(set(keys)) != len(keys):
        raise ValueError("A variable can only appear once in groups.")
    return groups


def _keys(variable: Any) -> tuple[int, ...]:
    """What identifies a variable: programs pass Keras' objects, or TensorFlow's inside them.

    On JAX the array inside does not identify it: each assignment makes another one.
    """
    inner = None if backend_name() == "jax" else getattr(variable, "_value", None)
    return (id(variable),) if inner is None else (id(variable), id(inner))
