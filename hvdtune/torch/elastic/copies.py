"""Copies of ``state_dict()``s into the memory of earlier copies: at once, or during training."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hvdtune.torch.optimizer.adasum import add_delta_hook

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors, and the tensors into which each is copied."""


def copied(value: Any, before: Any = None, later: Pairs | None = None) -> Any:
    """A deep copy of tensors in dicts and lists, and of anything else in them.

    before: an earlier copy that is no longer needed; tensors of the same shape, dtype and device
    reuse its memory. later: collects the tensors that are still to be copied; None: copy them here.
    """
    if isinstance(value, dict):
        result = copy.copy(value)  # an OrderedDict of a module has attributes
        known = before if isinstance(before, dict) else {}
        for key, item in value.items():
            result[key] = copied(item, known.get(key), later)
        return result
    if type(value) is list:
        fits = isinstance(before, list) and len(before) == len(value)
        others: list[Any] = before if fits else [None] * len(value)
        return [copied(item, other, later) for item, other in zip(value, others, strict=True)]
    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        return copy.deepcopy(value)
    own = before if _fits(before, value) else torch.empty_like(value, requires_grad=False)
    if later is None:
        _copy([(value, own)])
    else:
        later.append((value, own))
    return own


def copied_in_part(state: Any, before: Any, keys: Iterable[Any], later: Pairs) -> Any:
    """As ``copied``, for a dict; the items under ``keys`` are copied later."""
    if not isinstance(state, dict):
        return copied(state, before)
    keys, known = set(keys), before if isinstance(before, Mapping) else {}
    result = copy.copy(state)
    for key, item in state.items():
        result[key] = copied(item, known.get(key), later if key in keys else None)
    return result


class Copying:
    """Copies tensors during training: every optimizer's step waits until they are copied."""

    _executor: ThreadPoolExecutor | None = None
    _under_way: ClassVar[weakref.WeakSet[Copying]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    def start(self, pairs: Pairs) -> None:
        """Begin to copy. The caller must have waited for an earlier copy."""
        if not pairs:
            return
        if Copying._executor is None:
            register_optimizer_step_pre_hook(Copying._before_step)
            add_delta_hook(Copying._before_step)
            Copying._executor = ThreadPoolExecutor(1, "hvdtune-commit")
        self._future = Copying._executor.submit(_copy, pairs)
        Copying._under_way.add(self)

    def wait(self) -> None:
        """Wait until all is copied. Raises any error of copying."""
        future, self._future = self._future, None
        if future is not None:
            Copying._under_way.discard(self)
            future.result()

    @staticmethod
    def _before_step(*_step: object) -> None:
        for copying in list(Copying._under_way):
            copying.wait()


def _fits(before: Any, value: torch.Tensor) -> bool:
    return type(before) is torch.Tensor and (before.shape, before.dtype, before.device) == (
        value.shape,
        value.dtype,
        value.device,
    )


def _copy(pairs: Pairs) -> None:
    with torch.no_grad():
        for source, target in pairs:
            target.copy_(source)
