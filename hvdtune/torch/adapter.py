"""PyTorch's tensors as the engine takes and returns them.

Nothing here is compiled against torch. A tensor that the engine cannot take (another device, a
sparse or strided layout, a type without arithmetic) is refused here, with advice for the user.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hvdtune.core import memory
from hvdtune.core.device_arrays import DeviceArray
from hvdtune.core.operations import DTYPES, Buffer
from hvdtune.faces import arguments

# torch has uint16 only since 2.3.
CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in DTYPES.items() if hasattr(torch, name)
}
# Subclasses decide themselves what operations on them return.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)


def as_buffer(tensor: torch.Tensor, operation: str) -> Buffer:
    """The memory of ``tensor`` (any shape), kept alive by the buffer.

    A tensor on a GPU is ready once the work queued so far on its GPU's current stream is done.
    ``operation`` is for error messages. Raises TypeError for anything but a tensor. Raises
    ValueError unless the tensor is dense, contiguous, on the CPU or an NVIDIA GPU, and of a type
    of ``CODES``.
    """
    try:
        code = CODES[tensor.dtype]
        if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_nested:
            if tensor.is_cpu:
                address = tensor.data_ptr()
                if address or not tensor.numel():
                    return Buffer(address, code, tuple(tensor.shape), tensor)
            elif tensor.is_cuda and torch.version.hip is None:
                return _on_gpu(tensor, code)
    except (AttributeError, KeyError, RuntimeError):
        # A number, a type without a code, a layout without contiguity or memory: see _refusal.
        pass
    raise _refusal(tensor, operation)


def _on_gpu(tensor: torch.Tensor, code: int) -> Buffer:
    def current_stream() -> int:
        return torch.cuda.current_stream(tensor.device).cuda_stream

    return Buffer(
        tensor.data_ptr(),
        code,
        tuple(tensor.shape),
        tensor,
        tensor.get_device(),
        (current_stream(),),
        current_stream,
    )


_TO_COO = (
    "give it tensor.to_dense(), or sparse_allreduce_async {}, which adds up sparse COO tensors"
)
_ADVICE = {
    torch.sparse_coo: _TO_COO.format("the tensor"),
    torch.sparse_csr: _TO_COO.format("tensor.to_sparse_coo()"),
    torch.sparse_csc: _TO_COO.format("tensor.to_sparse_coo()"),
    torch.sparse_bsr: _TO_COO.format("tensor.to_dense().to_sparse_coo()"),
    torch.sparse_bsc: _TO_COO.format("tensor.to_dense().to_sparse_coo()"),
}


def _refusal(tensor: Any, operation: str) -> TypeError | ValueError:
    """The error for a tensor that ``as_buffer`` does not take."""
    if not isinstance(tensor, torch.Tensor):
        return TypeError(f"{operation} takes a torch.Tensor, not a {type(tensor).__name__}.")
    if tensor.is_nested:
        return ValueError(
            f"Tensor type {tensor.dtype} with layout {tensor.layout}, nested, is not supported. "
            f"{operation} does not take nested tensors; give it their parts, tensor.unbind()."
        )
    if tensor.layout is not torch.strided:
        advice = _ADVICE.get(tensor.layout, "give it tensor.to_dense()")
        return ValueError(
            f"Tensor type {tensor.dtype} with layout {tensor.layout} (shape {tuple(tensor.shape)}) "
            f"is not supported. {operation} takes dense tensors: {advice}."
        )
    if tensor.dtype not in CODES:
        return ValueError(
            f"Tensor type {tensor.type()} is not supported. {operation} takes {_NAMES}"
            f"{_conversion(tensor)}."
        )
    if tensor.is_meta:
        return ValueError(
            f"Tensors on device {tensor.device} are not supported by {operation}: this one, of "
            f"shape {tuple(tensor.shape)}, has no memory yet. Give it some with "
            "module.to_empty() or torch.empty_like(tensor, device='cpu')."
        )
    if not (tensor.is_cpu or (tensor.is_cuda and torch.version.hip is None)):
        return ValueError(
            f"Tensors on device {tensor.device} are not supported by {operation}: it takes those "
            "on the CPU and on NVIDIA's GPUs. Move the tensor to the CPU with tensor.cpu()."
        )
    if tensor.is_contiguous():
        kind, advice = _without_memory(tensor)
        return ValueError(
            f"{operation} does not take {kind}, of shape {tuple(tensor.shape)}: {advice}."
        )
    return ValueError(
        f"Tensor is required to be contiguous. {operation} got shape {tuple(tensor.shape)} with "
        f"strides {tuple(tensor.stride())}; call tensor.contiguous() first."
    )


def _conversion(tensor: torch.Tensor) -> str:
    if tensor.is_quantized:
        return "; give it tensor.dequantize(), or tensor.int_repr()"
    if tensor.is_complex():
        return "; give it torch.view_as_real(tensor.resolve_conj()), the parts of complex numbers"
    return ""


def _without_memory(tensor: torch.Tensor) -> tuple[str, str]:
    """Describes a contiguous tensor whose memory does not hold its values, and says what to do."""
    if tensor.is_neg():
        return "a tensor whose sign is changed when it is read", "give it tensor.resolve_neg()"
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__} that has no memory", "give it a tensor with values"
    return "a tensor that has no memory", "give it tensor.clone()"


def group_members(tensors: Iterable[torch.Tensor], operation: str) -> list[torch.Tensor]:
    """`arguments.group_members`."""
    return arguments.group_members(tensors, isinstance(tensors, torch.Tensor), operation)


def tensor_from(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``dtype`` on the memory of ``array`` (contiguous), without a copy.

    Uses the buffer protocol, so any pairing of NumPy and torch versions works, and bfloat16, which
    NumPy has no name for, needs no special case. An array on a GPU gives a tensor on that GPU.
    """
    if type(array) is DeviceArray:
        place = f"cuda:{array.device}"
        if 0 in array.shape:
            return torch.empty(array.shape, dtype=dtype, device=place)
        return torch.as_tensor(array, device=place).view(dtype)
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype, device="cpu")
    return torch.frombuffer(array, dtype=dtype).view(array.shape)


def array_of(tensor: torch.Tensor, dtype: torch.dtype) -> npt.NDArray[Any]:
    """A copy of ``tensor`` as an array. ``dtype``: torch.float32 or torch.float64."""
    array = np.empty(tuple(tensor.shape), "float64" if dtype is torch.float64 else "float32")
    if array.size:
        torch.frombuffer(array, dtype=dtype).view(array.shape).copy_(tensor)
    return array


class TorchAdapter:
    """See `faces.adapter.Adapter`."""

    codes: dict[Any, int] = CODES

    def buffer(self, tensor: torch.Tensor, operation: str, *, written: bool = False) -> Buffer:
        """`as_buffer`; every dense tensor can be written."""
        return as_buffer(tensor, operation)

    def fresh(self, tensor: torch.Tensor, rows: int | None = None) -> torch.Tensor:
        """An uninitialised tensor, dense in memory; see `Adapter`."""
        # torch.empty needs 2 us to read its arguments, a third of a small collective's time;
        # empty_like and new_empty need less than half of that.
        is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
        is_like = rows is None and is_plain and tensor.is_contiguous()
        if is_like and tensor.nbytes < memory.LARGE_RESULT_BYTES:
            return torch.empty_like(tensor)
        shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
        size = math.prod(shape) * tensor.element_size()
        if tensor.is_cpu and size >= memory.LARGE_RESULT_BYTES:
            return torch.frombuffer(memory.result_memory(size), dtype=tensor.dtype).view(shape)
        if rows is not None and is_plain:
            return tensor.new_empty(*shape)
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)

    def result(self, tensor: torch.Tensor, output: Any) -> torch.Tensor:
        """`tensor_from`, with the type of ``tensor``."""
        return tensor_from(output, tensor.dtype)

    def plain_output(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """An uninitialised tensor like one that is dense, contiguous and on the CPU; else None."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        if tensor.dtype not in CODES or tensor.is_nested:
            return None
        return self.fresh(tensor) if tensor.is_contiguous() and tensor.is_cpu else None

    def members(self, tensors: Iterable[torch.Tensor], operation: str) -> list[torch.Tensor]:
        """`group_members`."""
        return group_members(tensors, operation)

    def splits(self, splits: Any) -> list[int] | None:
        """The rows for each receiver. Raises ValueError unless they are 32-bit integers."""
        if splits is None:
            return None
        if not isinstance(splits, torch.Tensor):
            return arguments.split_sizes(splits)
        arguments.check_splits(splits.shape, str(splits.dtype).removeprefix("torch."))
        rows: list[int] = splits.tolist()
        return rows

    def received(self, splits: Any, counts: Sequence[int]) -> torch.Tensor:
        """The rows from each sender, on the device of ``splits``."""
        received = torch.tensor(counts, dtype=torch.int32, device="cpu")
        return received.to(splits.device) if isinstance(splits, torch.Tensor) else received
