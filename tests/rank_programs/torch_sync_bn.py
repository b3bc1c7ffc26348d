"""Rank programs: SyncBatchNorm is ``torch.nn.BatchNorm`` over the joined batch of all ranks.

Every rank knows all ranks' inputs and puts them through the ordinary layer in float64.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from rank_programs.torch_cases import EXACT, FLOATS, error_of, run_checks
from torch import nn

import hvdtune.torch as hvd

CHANNELS = 3
ROWS = (5, 1, 3, 2)  # of rank 0, 1, …
PLAIN = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def rows_of(rank: int) -> slice:
    first = sum(ROWS[:rank])
    return slice(first, first + ROWS[rank])


def joined(*tail: int, seed: int = 0) -> torch.Tensor:
    """The batch of all ranks, in float64: channels of other means and widths, as do the ranks."""
    generator = torch.Generator().manual_seed(seed + sum(tail))
    batch = torch.randn(sum(ROWS[: hvd.size()]), CHANNELS, *tail, generator=generator, dtype=EXACT)
    for rank in range(hvd.size()):
        batch[rows_of(rank)] = batch[rows_of(rank)] * (rank + 1) + rank
    return batch + torch.arange(CHANNELS).view(1, -1, *[1] * len(tail))


def close(got: torch.Tensor, expected: torch.Tensor, what: object, terms: int = 0) -> None:
    """Fail unless ``got`` is ``expected``, up to the rounding of a sum of so many terms."""
    assert got.shape == expected.shape, what
    if got.numel():
        size = 1.0 + float(expected.abs().max()) + terms
        error = float((got.detach().to(EXACT) - expected.detach().to(EXACT)).abs().max())
        assert error <= 16 * torch.finfo(got.dtype).eps * size, (what, error, got, expected)


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    return hvd.allgather(tensor.detach().unsqueeze(0)).sum(0)


def new_pair(spatial: int, dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    """A layer over all ranks in ``dtype``, and an ordinary one in float64 with equal weights."""
    layer = hvd.SyncBatchNorm(CHANNELS, **options)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
            layer.bias.copy_(torch.tensor([1.0, -2.0, 0.25]))
    plain = PLAIN[spatial](CHANNELS, **options)
    plain.load_state_dict(layer.state_dict())
    return layer.to(dtype), plain.to(EXACT)


def check_step(layer: Any, plain: Any, batch: torch.Tensor, dtype: torch.dtype, what: Any) -> None:
    """One forward and backward pass; output, gradients and running statistics must be equal."""
    own, whole = batch[rows_of(hvd.rank())].to(dtype), batch.to(dtype).to(EXACT)
    slope = joined(*batch.shape[2:], seed=7).to(dtype)
    own.requires_grad_()
    whole.requires_grad_()
    layer.zero_grad()
    plain.zero_grad()
    output, expected = layer(own), plain(whole)
    assert output.dtype is dtype
    output.backward(slope[rows_of(hvd.rank())])
    expected.backward(slope.to(EXACT))
    close(output, expected[rows_of(hvd.rank())], (what, "output"))
    close(own.grad, whole.grad[rows_of(hvd.rank())], (what, "gradient of the input"))
    for name, parameter in layer.named_parameters():
        assert parameter.grad.dtype is parameter.dtype
        total = sum_over_ranks(parameter.grad)
        values = whole.numel() // CHANNELS
        close(total, dict(plain.named_parameters())[name].grad, (what, name), values)
    if hvd.size() > 1 and layer.affine:
        close(layer.bias.grad, sum_rows(slope[rows_of(hvd.rank())]), (what, "local gradient"), 60)
    for name, buffer in layer.named_buffers():
        if buffer.dtype is torch.int64:
            assert int(buffer) == int(dict(plain.named_buffers())[name]), (what, name)
        else:
            close(buffer, dict(plain.named_buffers())[name], (what, name))


def sum_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(EXACT).sum([dim for dim in range(tensor.dim()) if dim != 1])


def every_shape_and_type() -> None:
    tails: tuple[tuple[int, ...], ...] = ((), (4,), (3, 2), (2, 3, 2))
    for dtype, tail in itertools.product(FLOATS, tails):
        layer, plain = new_pair(len(tail), dtype)
        for seed in range(2):
            check_step(layer, plain, joined(*tail, seed=seed), dtype, (dtype, tail, seed))


def every_option() -> None:
    for options in (
        {"momentum": None},
        {"momentum": 1.0, "eps": 1e-2},
        {"affine": False},
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False, "eps": 1e-12},
    ):
        layer, plain = new_pair(2, torch.float32, **options)
        for seed in range(3):
            check_step(layer, plain, joined(2, 2, seed=seed), torch.float32, options)
        # Without running statistics evaluation takes those of the joined batch too.
        layer.eval()
        plain.eval()
        check_step(layer, plain, joined(2, 2, seed=4), torch.float32, (options, "eval"))


def mixed_types_and_layouts() -> None:
    """float32 layers with narrower input, as under autocast; channels_last; no input gradient."""
    for dtype in (torch.float16, torch.bfloat16):
        layer, plain = new_pair(2, torch.float32)
        check_step(layer, plain, joined(3, 2), dtype, ("float32 layer", dtype))
    layer, plain = new_pair(2, torch.float64)
    images = joined(4, 4)
    output = layer(images[rows_of(hvd.rank())].contiguous(memory_format=torch.channels_last))
    close(output, plain(images)[rows_of(hvd.rank())], "channels_last")
    output.sum().backward()
    assert layer.weight.grad is not None
    numbers = hvd.broadcast_object(0)  # nothing of the layer is in flight
    assert numbers == 0
    tracked = layer.num_batches_tracked
    layer(images[rows_of(hvd.rank())])
    assert (int(tracked), int(layer.num_batches_tracked)) == (1, 2)


def uneven_images() -> None:
    """Ranks with images of other sizes: every value counts once."""
    layer, _ = new_pair(2, torch.float64, affine=False)
    images = [torch.randn(2, CHANNELS, 2 + r, 3, dtype=EXACT) for r in range(hvd.size())]
    images = hvd.broadcast_object(images)
    values = torch.cat([image.transpose(0, 1).reshape(CHANNELS, -1) for image in images], 1)
    got = layer(images[hvd.rank()])
    shape = (1, CHANNELS, 1, 1)
    mean, deviation = values.mean(1).view(shape), (values.var(1, correction=0) + 1e-5).sqrt()
    close(got, (images[hvd.rank()] - mean) / deviation.view(shape), "images")


def rank_without_rows() -> None:
    if hvd.size() == 1:
        return
    layer, plain = new_pair(1, torch.float32)
    empty = hvd.rank() == hvd.size() - 1
    batch = joined(4).float()[: sum(ROWS[: hvd.size() - 1])]
    own = (batch[:0] if empty else batch[rows_of(hvd.rank())]).requires_grad_()
    whole = batch.to(EXACT).requires_grad_()
    output, expected = layer(own), plain(whole)
    (output * own.detach()).sum().backward()
    (expected * whole.detach()).sum().backward()
    assert output.shape == own.shape
    close(layer.running_var, plain.running_var, "running_var")
    close(sum_over_ranks(layer.weight.grad), plain.weight.grad, "weight", 40)
    assert layer.bias.grad.any() != empty
    if not empty:
        close(own.grad, whole.grad[rows_of(hvd.rank())], "input")


def evaluation_is_local() -> None:
    """Trained statistics are equal on all ranks; one rank can evaluate while others wait."""
    layer, plain = new_pair(2, torch.float32)
    check_step(layer, plain, joined(2, 2), torch.float32, "training")
    states = hvd.allgather_object(copy.deepcopy(layer.state_dict()))
    for name, value in states[0].items():
        assert all(torch.equal(state[name], value) for state in states), name
    layer.eval()
    plain.eval()
    if hvd.rank() == 0:
        images = joined(2, 2, seed=3)
        close(layer(images.float()), plain(images.float().to(EXACT)), "evaluation")


def new_network(normalise: Any) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), normalise(4), nn.ReLU(), nn.Conv2d(4, 4, 2), normalise(4),
        nn.Flatten(), nn.Linear(16, 4), normalise(4) if normalise is hvd.SyncBatchNorm
        else nn.BatchNorm1d(4), nn.Linear(4, 1),
    ).double()  # fmt: skip


def several_layers_in_training() -> None:
    """A network with three of them, under DistributedOptimizer, against one process."""
    network, alone = new_network(hvd.SyncBatchNorm), new_network(nn.BatchNorm2d)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), network.named_parameters()
    )
    other = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    share = 3
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(share * hvd.size(), 2, 5, 5, generator=generator, dtype=EXACT)
        own = images[share * hvd.rank() : share * (hvd.rank() + 1)]
        for model, stepper, batch in ((network, optimizer, own), (alone, other, images)):
            stepper.zero_grad()
            (model(batch) - batch.mean((1, 2, 3)).unsqueeze(1)).square().mean().backward()
            stepper.step()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-9, atol=1e-10)


def compiled() -> None:
    # One rank takes torch's own batch norm; of more, each needs seconds to load the compiler.
    if hvd.size() != 2:
        return
    network = new_network(hvd.SyncBatchNorm)
    images = torch.randn(3, 2, 5, 5, dtype=EXACT, generator=torch.Generator().manual_seed(1))
    for model in (network.train(), network.eval()):
        twin = torch.compile(copy.deepcopy(model), backend="eager")
        for _ in range(2):
            torch.testing.assert_close(twin(images), model(images))


def conversion() -> None:
    plain = new_network(nn.BatchNorm2d).eval()
    copied = copy.deepcopy(plain)
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(plain)
    assert converted is plain
    assert [type(layer) for layer in converted if "Norm" in type(layer).__name__] == (
        [hvd.SyncBatchNorm] * 3
    )
    assert not converted[1].training
    assert converted.state_dict().keys() == copied.state_dict().keys()
    images = torch.randn(2, 2, 5, 5, dtype=EXACT)
    assert torch.equal(converted(images), copied(images))
    single = hvd.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2, affine=False))
    assert (type(single), single.weight) == (hvd.SyncBatchNorm, None)
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(single) is single
    error_of(
        lambda: hvd.SyncBatchNorm.convert_sync_batchnorm(nn.LazyBatchNorm1d()), ValueError, "lazy"
    )


def wrong_input() -> None:
    layer = hvd.SyncBatchNorm(CHANNELS)
    for batch, fragment in (
        (torch.ones(CHANNELS), "1D input of shape (3,)"),
        (torch.tensor(1.0), "0D input"),
        (torch.ones(2, 4), "4 channels"),
        (torch.ones(2, CHANNELS, dtype=torch.int64), "torch.int64"),
    ):
        error_of(lambda b=batch: layer(b), ValueError, "at least 2D", fragment)
        # One rank's mistake: it hears what it did, the others whose it was.
        if hvd.size() > 1:
            own = hvd.rank() == hvd.size() - 1
            mixed = batch if own else torch.ones(2, CHANNELS)
            said = fragment if own else f"rank {hvd.size() - 1}"
            error_of(lambda m=mixed: layer(m), ValueError, "SyncBatchNorm", said)
    one = torch.ones(1 if hvd.rank() == 0 else 0, CHANNELS)
    if hvd.size() > 1:
        error_of(lambda: layer(one), ValueError, "more than 1 value per channel")
    assert int(layer.num_batches_tracked) == 0, "what fails changes nothing"
    layer.eval()
    error_of(lambda: layer(torch.ones(CHANNELS)), ValueError, "at least 2D")
    if hvd.size() > 1:
        other = hvd.SyncBatchNorm(CHANNELS + int(hvd.rank() == 0))
        # Several times: nothing may be left under way, or the next layer would meet it.
        for _ in range(20):
            error_of(
                lambda: other(torch.ones(2, other.num_features)),
                hvd.HorovodInternalError,
                "sync_batch_norm.mean",
                "with dimension",
            )
            hvd.SyncBatchNorm(CHANNELS)(torch.randn(3, CHANNELS))


def run() -> list[str]:
    hvd.init()
    return run_checks(
        every_shape_and_type,
        every_option,
        mixed_types_and_layouts,
        uneven_images,
        rank_without_rows,
        evaluation_is_local,
        several_layers_in_training,
        compiled,
        conversion,
        wrong_input,
    )
