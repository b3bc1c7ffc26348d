"""Gradients in memory that the ranks share, in which they are reduced without being copied.

Each gradient gets a place of its own in a block of such memory; neighbours in the block are
gradients that become ready one after another. A place is a tensor, which becomes the parameter's
``grad``; the backward pass then adds to it. If ``grad`` is another tensor when the gradient is
sent (the backward pass makes a new one after ``zero_grad(set_to_none=True)``), it is first copied
in.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from hvdtune.core import memory
from hvdtune.torch.adapter import CODES

_LINE = 64  # bytes; every type starts a new cache line

_warned = False  # about the lack of such memory


class GradientViews:
    """The places of some parameters' gradients. Clear them when the job ends."""

    def __init__(self) -> None:
        self._places: dict[torch.Tensor, torch.Tensor] = {}
        self._refused = False

    def add(self, parameters: Sequence[torch.Tensor]) -> None:
        """Give places to the parameters that have none and can have one.

        These are the parameters that are dense and in order in the CPU's memory. If shared memory
        is short, a warning is given and the gradients stay where they are.
        """
        new = [p for p in parameters if p not in self._places and _can_have_place(p)]
        if not new or self._refused:
            return
        # The gradients of the last parameters are ready first.
        new.reverse()
        new.sort(key=lambda parameter: CODES[parameter.dtype])
        offsets, size = _lay_out(new)
        try:
            block = memory.allocate_shared(size)
        except ValueError as error:
            self._refused = True
            _warn(error)
            return
        for parameter, offset in zip(new, offsets, strict=True):
            self._places[parameter] = _place(block, offset, parameter)

    def clear(self) -> None:
        """Forget all places: after the job, their memory is no longer shared."""
        self._places.clear()
        self._refused = False

    def move_in(self, parameter: torch.Tensor) -> bool:
        """Make the place of ``parameter`` its gradient, with the gradient's values.

        Returns False if it has no place. A missing gradient becomes zeros. The engine must not be
        working on the place.
        """
        place = self._places.get(parameter)
        # A parameter may change its type or shape yet stay the same object, as in `model.half()`.
        if place is None or place.dtype != parameter.dtype or place.shape != parameter.shape:
            return False
        gradient = parameter.grad
        if gradient is place:
            return True
        if gradient is None:
            place.zero_()
        elif gradient.layout is not torch.strided:
            return False
        elif gradient.data_ptr() != place.data_ptr():
            with torch.no_grad():
                place.copy_(gradient)
        parameter.grad = place
        return True


def _can_have_place(parameter: torch.Tensor) -> bool:
    return (
        parameter.layout is torch.strided
        and parameter.is_cpu
        and parameter.dtype in CODES
        and parameter.numel() > 0
        and parameter.is_contiguous()
    )


def _lay_out(parameters: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """Where each begins, and the size of all, in bytes. Equal types leave no gaps."""
    offsets, end = [], 0
    last: torch.dtype | None = None
    for parameter in parameters:
        if parameter.dtype != last:
            end = (end + _LINE - 1) // _LINE * _LINE
            last = parameter.dtype
        offsets.append(end)
        end += parameter.numel() * parameter.element_size()
    return offsets, end


def _place(block: Any, offset: int, parameter: torch.Tensor) -> torch.Tensor:
    """A tensor like ``parameter`` at ``offset`` bytes of ``block``, which it keeps alive.

    It is not a view in torch's sense: it has its own version counter.
    """
    # A gradient is an ordinary tensor even if the step runs in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        flat = torch.frombuffer(
            block, dtype=parameter.dtype, count=parameter.numel(), offset=offset
        )
        place = torch.empty(0, dtype=parameter.dtype, device="cpu")
        place.set_(flat.untyped_storage(), 0, parameter.shape, parameter.stride())
    return place


def _warn(error: ValueError) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"gradient_as_buffer_view=True has no effect: {error}.", RuntimeWarning, stacklevel=2
        )
