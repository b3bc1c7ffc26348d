"""The value that training minimises: the labels' losses, weighted, from a model's outputs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hvdtune.spark.common.plan import rows_of

_OF_CLASSES = (
    torch.nn.CrossEntropyLoss,
    torch.nn.NLLLoss,
    torch.nn.MultiMarginLoss,
    torch.nn.functional.cross_entropy,
    torch.nn.functional.nll_loss,
    torch.nn.functional.multi_margin_loss,
)


def as_list(outputs: Any) -> list[torch.Tensor]:
    """A model's outputs as a list; there may be only one."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def as_inputs(
    features: Sequence[torch.Tensor], shapes: Sequence[Any] | None, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Feature columns in the model's form: floating-point numbers, in its shapes."""
    chosen = shapes or [None] * len(features)
    return [rows_of(one.to(dtype), shape) for one, shape in zip(features, chosen, strict=True)]


def dtype_of(model: torch.nn.Module) -> torch.dtype:
    """The type of the model's first floating-point parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def takes_reduction(loss: Any) -> bool:
    """Whether a loss can return a value for each row, which sample weights need."""
    if hasattr(loss, "reduction"):
        return True
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return True  # a built-in: only the call can tell
    return any(p.name == "reduction" or p.kind is p.VAR_KEYWORD for p in parameters)


def constructed(
    constructors: Sequence[Callable[..., Any]], known: Mapping[str, Any]
) -> list[Callable[..., Any]]:
    """The losses that `loss_constructors` make.

    As in Horovod, a constructor gets `known` as keywords; but only those that its signature names,
    unless it takes any.
    """
    return [make(**_accepted(make, known)) for make in constructors]


def _accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(known)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in known.items() if name in named}


class Objective:
    """The weighted sum of the labels' losses.

    losses: one for each label, called with output and label. weights: of the labels. label_shapes:
    a batch's shape for each label, or None to take the output's.
    """

    def __init__(
        self,
        losses: Sequence[Callable[..., Any]],
        weights: Sequence[float],
        label_shapes: Sequence[Any] | None,
    ) -> None:
        self._losses, self._weights = losses, weights
        self._label_shapes = label_shapes

    def transform_outputs(
        self, outputs: Any, labels: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Outputs as a list, and labels in matching shapes and types.

        A label with as many numbers as its output gets the output's shape and type. Whole numbers,
        and labels that are compared with one output per class, become int64.
        """
        found = as_list(outputs)
        if len(found) != len(labels):
            raise ValueError(
                f"the model has {len(found)} output(s) for {len(labels)} label column(s): one is "
                "needed for each."
            )
        shapes = self._label_shapes or [None] * len(found)
        fitted = [
            self._fitted(label, output, shape, loss)
            for label, output, shape, loss in zip(labels, found, shapes, self._losses, strict=True)
        ]
        return found, fitted

    def _fitted(
        self, label: torch.Tensor, output: torch.Tensor, shape: Any, loss: Any
    ) -> torch.Tensor:
        if shape is not None:
            label = rows_of(label, shape)
        if label.numel() == output.numel():
            label = label if shape is not None else label.reshape(output.shape)
            return label.to(output.dtype)
        if not label.is_floating_point() or loss in _OF_CLASSES or isinstance(loss, _MODULES):
            return label.long()
        return label.to(output.dtype)

    def __call__(
        self,
        outputs: Sequence[torch.Tensor],
        labels: Sequence[torch.Tensor],
        sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The loss of a batch; with sample weights, the mean over rows of loss times weight."""
        if sample_weights is None:
            values = [
                loss(output, label)
                for loss, output, label in zip(self._losses, outputs, labels, strict=True)
            ]
        else:
            values = [
                (_of_rows(loss, output, label) * sample_weights.to(output.dtype)).mean()
                for loss, output, label in zip(self._losses, outputs, labels, strict=True)
            ]
        total: Any = sum(
            weight * value for weight, value in zip(self._weights, values, strict=True)
        )
        return total


_MODULES = tuple(one for one in _OF_CLASSES if isinstance(one, type))


def _of_rows(loss: Any, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    if hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        values = loss(output, label)
    else:
        values = loss(output, label, reduction="none")
    return values.reshape(len(output), -1).mean(1)
