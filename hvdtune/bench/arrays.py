"""The arrays that the ranks measure with: NumPy's in CPU memory, or PyTorch tensors on a GPU.

Both have the same methods, so that operations and gradient sets are written once. `hvd` is the
face that takes such arrays. Arrays are one-dimensional; `pattern` defines their content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hvdtune.bench import pattern

if TYPE_CHECKING:
    import numpy

    Tile = numpy.ndarray[Any, Any]


class Arrays(Protocol):
    """Arrays of one kind, in one place."""

    hvd: Any

    def ones(self, elements: int, dtype: str) -> Any:
        """A new array of ones."""

    def fill(self, array: Any, tile: Tile) -> None:
        """Repeat a tile over an array, as `pattern.fill` does."""

    def count_wrong(self, array: Any, tile: Tile, offset: int = 0) -> int:
        """Elements that differ from what `pattern.fill` writes with this offset."""

    def finish(self) -> None:
        """Return when the device has finished all its work."""


class HostArrays:
    """NumPy arrays."""

    def __init__(self) -> None:
        import hvdtune

        self.hvd: Any = hvdtune

    def ones(self, elements: int, dtype: str) -> Any:
        """Ones in CPU memory."""
        import numpy as np

        return np.ones(elements, dtype)

    def fill(self, array: Any, tile: Tile) -> None:
        """In place."""
        pattern.fill(array, tile)

    def count_wrong(self, array: Any, tile: Tile, offset: int = 0) -> int:
        """In place."""
        return pattern.count_wrong(array, tile, offset)

    def finish(self) -> None:
        """Does nothing: an operation is over when its call returns."""


class TorchArrays:
    """PyTorch tensors on a device, such as "cuda:0"; filled and compared in CPU memory."""

    def __init__(self, device: str) -> None:
        import torch

        import hvdtune.torch

        self.hvd: Any = hvdtune.torch
        self._torch = torch
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def ones(self, elements: int, dtype: str) -> Any:
        """Ones on the device."""
        return self._torch.ones(elements, dtype=getattr(self._torch, dtype), device=self._device)

    def fill(self, array: Any, tile: Tile) -> None:
        """Copy the filled array to the device."""
        import numpy as np

        host = np.empty(array.numel(), tile.dtype)
        pattern.fill(host, tile)
        array.copy_(self._torch.from_numpy(host))

    def count_wrong(self, array: Any, tile: Tile, offset: int = 0) -> int:
        """Count in a copy in CPU memory."""
        return pattern.count_wrong(array.cpu().numpy(), tile, offset)

    def finish(self) -> None:
        """Wait for the GPU."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


def of_device(device: str, local_rank: int) -> Arrays:
    """The arrays of `--device`; with several GPUs, the ranks of a host use them in turn."""
    if device == "cpu":
        return HostArrays()
    import torch

    return TorchArrays(f"{device}:{local_rank % torch.cuda.device_count()}")
