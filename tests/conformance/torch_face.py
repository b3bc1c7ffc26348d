"""The PyTorch face: ``import hvdtune.torch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from conformance import program
from conformance.face import Face
from conformance.reference import DTYPES

import hvdtune.torch


class TorchFace(Face):
    name = "torch"
    hvd = hvdtune.torch
    kind = torch.Tensor
    # uint16 came to torch later than the oldest version that is supported.
    dtypes = tuple(dtype for dtype in DTYPES if hasattr(torch, dtype))
    autodiff = True
    training = True

    def tensor(self, values: np.ndarray, dtype: str) -> torch.Tensor:
        return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))

    def values(self, tensor: torch.Tensor) -> np.ndarray:
        tensor = tensor.detach()
        return np.array(tensor.float() if tensor.dtype is torch.bfloat16 else tensor)

    def dtype(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def strided(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.repeat(values, 2, axis=-1))[..., ::2]

    def pull_back(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        inputs: Sequence[Any],
        weights: Callable[[int, tuple[int, ...]], np.ndarray],
    ) -> list[np.ndarray]:
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        outputs = call(leaves)
        given = [
            torch.from_numpy(weights(i, tuple(out.shape)).copy()).to(out.dtype)
            for i, out in enumerate(outputs)
        ]
        kept = [gradient.clone() for gradient in given]
        torch.autograd.backward(list(outputs), given)
        assert all(map(torch.equal, given, kept)), "the upstream gradient has been changed"
        return [np.array(leaf.grad) for leaf in leaves]

    def descend(
        self,
        parameters: Sequence[np.ndarray],
        gradients: Sequence[Sequence[np.ndarray]],
        rate: float,
        passes: int = 1,
        **options: Any,
    ) -> list[np.ndarray]:
        leaves = [torch.nn.Parameter(torch.from_numpy(value.copy())) for value in parameters]
        named = [(f"p{i}", leaf) for i, leaf in enumerate(leaves)]
        optimizer = self.hvd.DistributedOptimizer(
            torch.optim.SGD(leaves, lr=rate),
            named_parameters=named,
            backward_passes_per_step=passes,
            **options,
        )
        for index, given in enumerate(gradients, 1):
            pairs = zip(leaves, given, strict=True)
            torch.stack([(leaf * torch.from_numpy(g)).sum() for leaf, g in pairs]).sum().backward()
            if index % passes == 0:
                optimizer.step()
                optimizer.zero_grad()
        return [np.array(leaf.detach()) for leaf in leaves]

    def broadcast_parameters(
        self, parameters: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        tensors = {name: torch.from_numpy(value.copy()) for name, value in parameters.items()}
        self.hvd.broadcast_parameters(tensors, root_rank=root)
        return {name: np.array(tensor) for name, tensor in tensors.items()}

    def broadcast_state(self, momentum: np.ndarray, rate: float, root: int) -> tuple[Any, float]:
        leaf = torch.nn.Parameter(torch.zeros(momentum.shape, dtype=torch.float64))
        optimizer = torch.optim.SGD([leaf], lr=rate, momentum=0.5)
        leaf.grad = torch.from_numpy(momentum.copy())
        optimizer.step()  # the first gradient becomes the momentum
        self.hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        return np.array(optimizer.state[leaf]["momentum_buffer"]), optimizer.param_groups[0]["lr"]


FACE = TorchFace()


def run(blocks: tuple[str, ...], thorough: bool = False) -> Any:
    """The rank program."""
    return program.run(FACE, blocks, thorough)
