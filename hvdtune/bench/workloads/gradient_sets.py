"""Gradient sets: the tensors one training step of a real model has to reduce.

Shapes are generated from the architectures (`convnets`, `transformers`), never abridged; the
unit tests compare their totals with the published ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hvdtune.bench.workloads import convnets, transformers
from hvdtune.bench.workloads.convnets import Parameter
from hvdtune.settings.spelling import hint


@dataclass(frozen=True)
class Workload:
    """One gradient set; `generate()` yields (name, shape) in the order of the forward pass."""

    key: str
    title: str
    generate: Callable[[], Iterable[Parameter]]

    def parameters(self) -> list[Parameter]:
        """All (name, shape), forward order."""
        return list(self.generate())

    def backward_order(self) -> list[Parameter]:
        """All (name, shape) in the order in which a backward pass finishes them."""
        return self.parameters()[::-1]

    def elements(self) -> int:
        """The number of parameters of the model."""
        return sum(math.prod(shape) for _, shape in self.generate())


def _tiny() -> Iterator[Parameter]:
    for index in range(1000):
        yield f"layers.{index}.weight", (256,)


WORKLOADS: dict[str, Workload] = {
    workload.key: workload
    for workload in (
        Workload("resnet50", "ResNet-50", convnets.resnet50),
        Workload("vgg16", "VGG-16", convnets.vgg16),
        Workload("inception3", "Inception v3", convnets.inception_v3),
        Workload("bert-base", "BERT-base", transformers.bert_base),
        Workload("gpt2", "GPT-2 small", transformers.gpt2_small),
        Workload("tiny", "1000 tiny", _tiny),
    )
}


def select(text: str) -> tuple[str, ...]:
    """Keys named by `all`, `none` or a comma-separated list; ValueError for an unknown one."""
    if text == "none":
        return ()
    if text == "all":
        return tuple(WORKLOADS)
    keys = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for key in keys:
        if key not in WORKLOADS:
            raise ValueError(
                f"unknown workload {key!r}; accepted: all, none, or {', '.join(WORKLOADS)}"
                f"{hint(key, WORKLOADS)}"
            )
    return keys
