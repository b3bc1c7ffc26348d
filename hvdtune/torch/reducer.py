"""Reduces the gradients of an optimizer's parameters over the ranks.

A hook on every parameter sees its gradient become final and submits it at once, so that the engine
reduces while the backward pass goes on. ``synchronize`` submits what the backward pass left out,
waits, and leaves the results in the gradients. The unit is a group of parameters reduced together;
a parameter that is in no group is a unit of its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Average
from hvdtune.torch import async_ops
from hvdtune.torch.groups import Group, Groups, form_groups

ParamGroups = Sequence[dict[str, Any]]  # as torch.optim.Optimizer has them


@dataclass(eq=False)
class Unit:
    """Parameters reduced together, and how far they are in the current step."""

    parameters: Group
    grouped: bool
    ready: int = 0  # parameters that had their last backward pass of the step


@dataclass
class Submission:
    """A reduction under way: where its results go and how to undo the compression."""

    wait: Callable[[], Any]  # returns the sequence of reduced tensors
    parameters: list[torch.Tensor]
    contexts: list[Any] = field(default_factory=list)


class GradientReducer:
    """Submits gradients during the backward pass and writes the results back.

    ``names`` are the allreduce names of the parameters. If not ``communicates``, nothing is ever
    submitted and ``synchronize`` does nothing. For the other arguments see DistributedOptimizer.
    """

    def __init__(
        self,
        param_groups: ParamGroups,
        names: dict[torch.Tensor, str],
        *,
        communicates: bool,
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Groups | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._names = names
        self._communicates = communicates
        self._compression = compression
        self._op = op
        self._prescale = 1.0 / gradient_predivide_factor if op == Average else 1.0
        self._postscale = gradient_predivide_factor if op == Average else 1.0
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set

        self._units: dict[torch.Tensor, Unit] = {}
        self._passes_left: dict[torch.Tensor, int] = {}
        self._submissions: dict[Unit, Submission] = {}
        self._sparse_dims: dict[torch.Tensor, int] = {}  # of the sparse gradients seen so far
        self._hooks: list[tuple[Any, Any]] = []
        self.is_pending = False  # a backward pass ran that synchronize() has not seen
        self.set_backward_passes_per_step(backward_passes_per_step)
        if communicates:
            self._watch(param_groups, groups)
        # The hooks are on the parameters and must not outlive this object.
        weakref.finalize(self, _remove, self._hooks)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Submit gradients at every ``passes``-th backward pass. Raises ValueError unless > 0."""
        if passes <= 0:
            raise ValueError(f"backward_passes_per_step must be > 0, not {passes}.")
        self._passes = passes
        self._count_anew()

    def reset(self) -> None:
        """Wait for the reductions under way, whatever becomes of them, and begin a new step.

        Until an operation is done the engine writes into its gradients, and its name is taken.
        """
        while self._submissions:
            _, submission = self._submissions.popitem()
            with contextlib.suppress(Exception):  # nobody wants the result, nor why there is none
                submission.wait()
        self._begin_step()

    def _begin_step(self) -> None:
        self._submissions.clear()
        self._count_anew()
        self.is_pending = False

    def _count_anew(self) -> None:
        self._passes_left = dict.fromkeys(self._passes_left, self._passes)
        for unit in self._units.values():
            unit.ready = 0

    def synchronize(self, param_groups: ParamGroups) -> None:
        """Submit what is missing, wait for everything, and put the results into the gradients.

        ``param_groups`` are the optimizer's, which may have grown. When a reduction fails, all of
        them are waited for and the first error is raised.
        """
        if not self._communicates:
            return
        self._watch(param_groups, None)
        try:
            for unit in dict.fromkeys(self._units.values()):
                if unit not in self._submissions:
                    self._submit(unit)
            self._collect()
        finally:
            self._begin_step()

    def _watch(self, param_groups: ParamGroups, groups: Groups | None) -> None:
        """Take up the parameters that require gradients and were not known yet.

        Later ones are those unfrozen or added to the optimizer after its construction.
        """
        new = {}
        for i, param_group in enumerate(param_groups):
            for j, parameter in enumerate(param_group["params"]):
                if parameter not in self._units and parameter.requires_grad:
                    name = self._names.setdefault(parameter, f"allreduce.noname.{i}.{j}")
                    new[parameter] = name
        if groups is None:
            units = [Unit((parameter,), grouped=False) for parameter in new]
        else:
            formed = form_groups(groups, new, self._process_set)
            units = [Unit(group, grouped=True) for group in formed]
        for unit in units:
            for parameter in unit.parameters:
                self._units[parameter] = unit
                self._passes_left[parameter] = self._passes
                self._add_hook(parameter)

    def _add_hook(self, parameter: torch.Tensor) -> None:
        reducer = weakref.ref(self)

        def hook(*unused: Any) -> None:
            alive = reducer()
            if alive is not None:
                alive._on_gradient(parameter)

        node: Any = parameter
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            handle = node.register_post_accumulate_grad_hook(hook)
        else:
            # Older torch: the graph node that accumulates, which lives as long as we hold it.
            with torch.enable_grad():
                view: Any = parameter.expand_as(parameter)
            node = view.grad_fn.next_functions[0][0]
            handle = node.register_hook(hook)
        self._hooks.append((handle, node))

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Runs in the backward pass when the gradient of ``parameter`` is complete."""
        left = self._passes_left[parameter]
        if left == 0:
            raise AssertionError(
                f"The gradient of parameter {self._names[parameter]!r} was computed more than "
                f"{self._passes} time(s) before step() or synchronize(). Increase "
                "backward_passes_per_step to accumulate gradients over several backward passes."
            )
        if parameter.grad is not None and parameter.grad.requires_grad:
            raise AssertionError(
                f"The gradient of parameter {self._names[parameter]!r} is part of a graph "
                "(backward with create_graph=True); it cannot be reduced in place."
            )
        self.is_pending = True
        self._passes_left[parameter] = left - 1
        if left == 1:
            unit = self._units[parameter]
            unit.ready += 1
            if unit.ready == len(unit.parameters):
                self._submit(unit)

    def _submit(self, unit: Unit) -> None:
        """Start reducing the gradients of ``unit``; parameters frozen by now are left out."""
        parameters = [p for p in unit.parameters if p.requires_grad]
        if not parameters:
            return
        name = self._names[parameters[0]]
        try:
            if unit.grouped:
                self._submissions[unit] = self._submit_group(parameters, name)
            else:
                self._submissions[unit] = self._submit_single(parameters[0], name)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Gradient of parameter {name!r}: {error}") from error

    def _submit_single(self, parameter: torch.Tensor, name: str) -> Submission:
        gradient = self._gradient(parameter)
        if gradient.is_sparse and not self._sparse_as_dense:
            wait_sparse = async_ops.sparse_allreduce_async(
                gradient, name, self._op, self._process_set
            )
            return Submission(lambda: (wait_sparse(),), [parameter], [None])
        tensor, context = self._compress(gradient)
        handle = async_ops.allreduce_async_(
            tensor,
            name=name,
            op=self._op,
            prescale_factor=self._prescale,
            postscale_factor=self._postscale,
            process_set=self._process_set,
        )
        return Submission(lambda: (async_ops.synchronize(handle),), [parameter], [context])

    def _submit_group(self, parameters: list[torch.Tensor], name: str) -> Submission:
        tensors, contexts = [], []
        for parameter in parameters:
            gradient = self._gradient(parameter)
            if gradient.is_sparse and not self._sparse_as_dense:
                raise ValueError(
                    f"parameter {self._names[parameter]!r} has a sparse gradient, which a group "
                    "cannot hold; use sparse_as_dense=True or no groups."
                )
            tensor, context = self._compress(gradient)
            tensors.append(tensor)
            contexts.append(context)
        handle = async_ops.grouped_allreduce_async_(
            tensors,
            name=name,
            op=self._op,
            prescale_factor=self._prescale,
            postscale_factor=self._postscale,
            process_set=self._process_set,
        )
        return Submission(lambda: async_ops.synchronize(handle), parameters, contexts)

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient of ``parameter``; zeros when this rank did not compute it."""
        if parameter.grad is None:
            # Another rank may have one: control flow may depend on the data.
            dims = self._sparse_dims.get(parameter)
            parameter.grad = (
                torch.zeros_like(parameter.detach())
                if dims is None
                else _no_entries(parameter, dims)
            )
        elif parameter.grad.is_sparse:
            self._sparse_dims[parameter] = parameter.grad.sparse_dim()
        return parameter.grad

    def _compress(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is sent for ``gradient``: compressed, dense and contiguous."""
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        return self._compression.compress(dense.contiguous())

    def _collect(self) -> None:
        """Wait for all submissions and write their results; raise the first error at the end."""
        first_error: Exception | None = None
        # The last one first: a blocked wait makes the engine close its batch, and by then
        # everything before it has been submitted and can share that batch.
        for submission in reversed(self._submissions.values()):
            try:
                results = submission.wait()
            except Exception as error:
                first_error = first_error or error
                continue
            for parameter, result, context in zip(
                submission.parameters, results, submission.contexts, strict=True
            ):
                self._store(parameter, result, context)
        if first_error is not None:
            raise first_error

    def _store(self, parameter: torch.Tensor, result: torch.Tensor, context: Any) -> None:
        """Make the reduced tensor the gradient of ``parameter``."""
        gradient = parameter.grad
        if result.is_sparse:
            parameter.grad = result
            return
        restored = self._compression.decompress(result, context)
        if gradient is None:  # the user removed it meanwhile
            parameter.grad = restored
        elif gradient.is_sparse:
            parameter.grad = restored.to_sparse(gradient.sparse_dim())
        elif restored is not gradient:
            gradient.copy_(restored)


def _remove(hooks: list[tuple[Any, Any]]) -> None:
    for handle, _ in hooks:
        handle.remove()
    hooks.clear()


def _no_entries(parameter: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """A sparse gradient of ``parameter`` that is zero everywhere."""
    shape = parameter.shape
    return torch.sparse_coo_tensor(
        torch.empty((sparse_dims, 0), dtype=torch.int64),
        torch.empty((0, *shape[sparse_dims:]), dtype=parameter.dtype),
        shape,
        check_invariants=False,
    )
