"""Torch tensors as the engine sees them: an address, a type code and a shape.

Nothing here is compiled against torch. Whatever the engine cannot take (another device, a sparse
or strided layout, a type it has no arithmetic for) is refused here, with the sentence a user needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hvdtune.core.device_arrays import DeviceArray
from hvdtune.core.operations import DTYPES, Buffer

# uint16 is there since torch 2.3 only.
CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in DTYPES.items() if hasattr(torch, name)
}
_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)


def as_buffer(tensor: torch.Tensor, operation: str) -> Buffer:
    """The memory of ``tensor`` (any shape), kept alive by the buffer.

    A tensor on a GPU can be used after what its GPU's current stream has been given up to now.
    ``operation`` is for the error messages. Raises TypeError for something that is no tensor and
    ValueError for a tensor that is not dense, contiguous, on the CPU or a GPU of NVIDIA's, and of a
    type of ``CODES``.
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
        # A number, a type without a code, a layout without contiguity or memory: explained below.
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


def as_buffers(tensors: Iterable[torch.Tensor], operation: str) -> list[Buffer]:
    """``as_buffer`` of every member of a group; the error names the member by its index."""
    buffers = []
    for index, tensor in enumerate(tensors):
        try:
            buffers.append(as_buffer(tensor, operation))
        except (TypeError, ValueError) as error:
            raise type(error)(f"Member {index} of the group: {error}") from None
    return buffers


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
    """What a contiguous tensor is whose memory is not its values, and what to do with it."""
    if tensor.is_neg():
        return "a tensor whose sign is changed when it is read", "give it tensor.resolve_neg()"
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__} that has no memory", "give it a tensor with values"
    return "a tensor that has no memory", "give it tensor.clone()"


def group_members(tensors: Iterable[torch.Tensor], operation: str) -> list[torch.Tensor]:
    """The tensors of a group as a list. Raises ValueError for a single tensor in a group's place.

    A tensor is iterable too, and would be taken for a group of its rows. Raises TypeError for what
    is no iterable.
    """
    if isinstance(tensors, torch.Tensor):
        raise ValueError(f"{operation} takes a list of tensors, not one tensor.")
    try:
        return list(tensors)
    except TypeError:
        raise TypeError(f"{operation} takes a list of tensors, not {tensors!r}.") from None


def tensor_from(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``dtype`` on the memory of ``array`` (contiguous), without a copy.

    Goes through the buffer protocol, so any pairing of NumPy and torch versions works, and
    bfloat16, which NumPy has no name for, needs no special case. An array on a GPU gives a tensor
    there.
    """
    if type(array) is DeviceArray:
        place = f"cuda:{array.device}"
        if 0 in array.shape:
            return torch.empty(array.shape, dtype=dtype, device=place)
        return torch.as_tensor(array, device=place).view(dtype)
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype, device="cpu")
    return torch.frombuffer(array, dtype=dtype).view(array.shape)
