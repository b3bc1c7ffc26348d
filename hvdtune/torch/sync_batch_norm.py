"""Batch normalisation over the combined batch of all ranks; `faces.batch_norm` has the formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvdtune.core.world import size
from hvdtune.faces import batch_norm
from hvdtune.torch.adapter import array_of, tensor_from


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm1d``, ``2d`` and ``3d`` over the combined batch of all ranks.

    Takes inputs of shape (rows, ``num_features``, …), 2-D to 5-D or more. Rows, and sizes after
    the channels, may differ between ranks, and a rank may have no rows. All ranks must run the
    forward and backward passes of their layers in the same order: two layers must not run at once,
    as in threads of one process. In evaluation with tracked statistics, and with one process, it
    is ordinary batch normalisation.

    Forward raises ValueError for input with fewer than two dimensions, a wrong number of channels
    or no floating-point type (on every rank, if training needs all of them), and if the combined
    batch has a single value per channel.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` normalised: same shape and type."""
        over_batch = self.training or self.running_mean is None or self.running_var is None
        if not over_batch or size() == 1:
            self._check_input_dim(input)
            return self._over_own_batch(input, over_batch)
        try:
            self._check_input_dim(input)
        except ValueError:
            # Tell the others, which are waiting for this rank's statistics.
            batch_norm.refuse(self.num_features)
            raise
        output, mean, var, count = _normalise(input, self.weight, self.bias, self.eps)
        factor = self._count_batch()
        if factor is not None:
            for running, new in (
                (self.running_mean, mean),
                (self.running_var, var * (count / (count - 1.0))),  # unbiased
            ):
                assert running is not None
                running.lerp_(new.to(running), factor)
        return output

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module) -> torch.nn.Module:
        """``module`` with every batch normalisation in it replaced by one over all ranks.

        Parameters and buffers are shared, not copied. If ``module`` is itself a batch
        normalisation, returns its replacement. Raises ValueError for a lazy one without input yet.
        """
        if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
            if isinstance(module, _BatchNorm):
                raise ValueError("run the model once before its lazy batch norms are converted.")
        elif isinstance(module, _BatchNorm) and not isinstance(module, cls):
            tracks = module.running_mean is not None
            new = cls(module.num_features, module.eps, module.momentum, module.affine, tracks)
            new.weight, new.bias = module.weight, module.bias
            new.running_mean, new.running_var = module.running_mean, module.running_var
            new.num_batches_tracked = module.num_batches_tracked
            new.track_running_stats = module.track_running_stats
            return new.train(module.training)
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child))
        return module

    def _check_input_dim(self, input: torch.Tensor) -> None:
        what = None
        if input.dim() < 2:
            what = f"{input.dim()}D input of shape {tuple(input.shape)}"
        elif input.shape[1] != self.num_features:
            what = f"{input.shape[1]} channels, in input of shape {tuple(input.shape)}"
        elif not input.is_floating_point():
            what = f"input of type {input.dtype}"
        if what:
            raise ValueError(
                "SyncBatchNorm expected at least 2D floating-point input with "
                f"{self.num_features} channels as its second dimension, got {what}."
            )

    def _count_batch(self) -> float | None:
        """The weight of the batch in the running statistics; None if they are not updated."""
        if not (self.training and self.track_running_stats):
            return None
        if self.running_mean is None or self.num_batches_tracked is None:
            return None
        # Not in place: code that saved the tensor keeps its value.
        self.num_batches_tracked = self.num_batches_tracked + 1
        if self.momentum is None:
            return 1.0 / float(self.num_batches_tracked)
        return float(self.momentum)

    def _over_own_batch(self, input: torch.Tensor, over_batch: bool) -> torch.Tensor:
        factor = self._count_batch()
        use_running = not over_batch or factor is not None
        return torch.nn.functional.batch_norm(
            input,
            self.running_mean if use_running else None,
            self.running_var if use_running else None,
            self.weight,
            self.bias,
            over_batch,
            factor or 0.0,
            self.eps,
        )


def _normalise(*args: Any) -> Any:
    """``_Normalise.apply``, after a graph break in a model that is being compiled."""
    if getattr(torch.compiler, "is_compiling", bool)():  # new in torch 2.2
        return torch.compiler.disable(_Normalise.apply)(*args)
    return _Normalise.apply(*args)


class _Normalise(torch.autograd.Function):
    """(output, mean, variance, values per channel) of the combined batch; see the module."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """Exchange the statistics of the ranks' batches and normalise this rank's batch."""
        # Half-precision types are too coarse for sums; use float32, as in torch's own batch norm.
        exact = torch.promote_types(input.dtype, torch.float32)
        mean, var, count = _joined_statistics(input.to(exact), eps)
        output = torch.nn.functional.batch_norm(
            input,
            mean.to(exact),
            var.to(exact),
            None if weight is None else weight.to(exact),
            None if bias is None else bias.to(exact),
            training=False,
            eps=eps,
        )
        ctx.save_for_backward(input, weight, mean.to(exact), (var + eps).rsqrt().to(exact))
        ctx.count = count
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(mean, var)
        return output, mean, var, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients of the input, over the combined batch, and of this rank's weight and bias."""
        input, weight, mean, invstd = ctx.saved_tensors
        exact = mean.dtype
        dims = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        gradient = gradients[0].to(exact)
        centred = input.to(exact) - mean.view(shape)
        sum_dy = gradient.sum(dims)
        sum_dy_xmu = (gradient * centred).sum(dims)
        needs_input, needs_weight, needs_bias, _ = ctx.needs_input_grad
        of_weight = (sum_dy_xmu * invstd).to(weight.dtype) if needs_weight else None
        of_bias = sum_dy.to(ctx.bias_dtype) if needs_bias else None
        of_input = None
        if needs_input:
            total_dy, total_dy_xmu = _sum_over_ranks(sum_dy, sum_dy_xmu)
            scale = invstd if weight is None else invstd * weight.to(exact)
            slope = total_dy_xmu * invstd.square() / ctx.count
            of_input = gradient - (total_dy / ctx.count).view(shape)
            of_input = (of_input - centred * slope.view(shape)) * scale.view(shape)
            of_input = of_input.to(input.dtype)
        return of_input, of_weight, of_bias, None


def _joined_statistics(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and variance by channel over all ranks, and the values per channel; float64."""
    channels = input.shape[1]
    dims = [dim for dim in range(input.dim()) if dim != 1]
    count = input.numel() // channels if channels else 0
    if count:
        var, mean = torch.var_mean(input, dims, correction=0)
    else:
        var = mean = torch.zeros(channels, device=input.device)
    own = batch_norm.Moments(count, array_of(mean, torch.float64), array_of(var, torch.float64))
    all_ranks = batch_norm.joined(own, eps)
    mean, var = (
        tensor_from(moment, torch.float64).to(input.device)
        for moment in (all_ranks.mean, all_ranks.variance)
    )
    return mean, var, all_ranks.count


def _sum_over_ranks(
    sum_dy: torch.Tensor, sum_dy_xmu: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = [array_of(part, part.dtype) for part in (sum_dy, sum_dy_xmu)]
    batch_norm.sum_over_ranks(*arrays)
    first, second = (tensor_from(array, sum_dy.dtype).to(sum_dy.device) for array in arrays)
    return first, second
