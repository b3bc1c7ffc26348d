"""Several optimizers over one backward pass: what the error says."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import hvdtune.torch as hvd

Named = Iterable[tuple[str, torch.Tensor]]


def net(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def wrapped(named: Named, kind: Any = torch.optim.SGD, **options: Any) -> Any:
    pairs = list(named)
    return hvd.DistributedOptimizer(kind([p for _, p in pairs], lr=0.01), pairs, **options)


def error_of(train: Callable[[], None]) -> str:
    try:
        train()
    except AssertionError as error:
        return str(error)
    return ""


def gan() -> None:
    """The generator's loss goes through the discriminator."""
    generator, critic = net(3, 4), net(4, 1)
    one = wrapped(generator.named_parameters(), torch.optim.Adam)
    two = wrapped(critic.named_parameters(), torch.optim.RMSprop)
    one.zero_grad()
    critic(generator(torch.randn(8, 3))).sum().backward()
    one.step()
    two.zero_grad()


def halves() -> None:
    """Each half's optimizer has a backward pass of its own, through both."""
    model = net(4, 2)
    pairs = list(model.named_parameters())
    one, two = wrapped(pairs[:2]), wrapped(pairs[2:], torch.optim.Adam)
    for optimizer in (one, two):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()


def three() -> None:
    """A loss goes through three networks; the last one's optimizer is left out."""
    nets = [net(4, 4) for _ in range(3)]
    one, two, three = (
        wrapped(n.named_parameters(), kind)
        for n, kind in zip(
            nets, (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad), strict=True
        )
    )
    nn.Sequential(*nets)(torch.randn(2, 4)).sum().backward()
    one.step()
    two.step()
    three.zero_grad()


def critic_steps() -> None:
    """WGAN: several steps of the critic whose losses also reach the generator."""
    generator, critic = net(3, 4), net(4, 1)
    one = wrapped(generator.named_parameters(), torch.optim.Adam)
    two = wrapped(critic.named_parameters(), torch.optim.RMSprop)
    for _ in range(3):
        two.zero_grad()
        critic(generator(torch.randn(8, 3))).mean().backward()
        two.step()
    one.zero_grad()


def accumulation() -> None:
    """The same with gradients that add up over two passes."""
    generator, critic = net(3, 4), net(4, 1)
    one = wrapped(generator.named_parameters(), torch.optim.Adam, backward_passes_per_step=2)
    two = wrapped(critic.named_parameters(), torch.optim.RMSprop, backward_passes_per_step=2)
    for _ in range(2):
        critic(generator(torch.randn(8, 3))).mean().backward()
    two.step()
    one.zero_grad()


def shared() -> None:
    """Two heads on one body: the body's optimizer waits when a head has stepped."""
    body, head = net(4, 4), net(4, 1)
    one, two = wrapped(body.named_parameters()), wrapped(head.named_parameters(), torch.optim.Adam)
    head(body(torch.randn(2, 4))).sum().backward()
    two.step()
    one.zero_grad()


def plain_mistake() -> None:
    """Nobody else has stepped, but there is another optimizer."""
    model, other = net(4, 1), net(4, 1)
    one, two = wrapped(model.named_parameters()), wrapped(other.named_parameters())
    model(torch.randn(2, 4)).sum().backward()
    assert two is not None
    one.zero_grad()


def alone() -> None:
    """The only optimizer."""
    model = net(4, 1)
    one = wrapped(model.named_parameters())
    model(torch.randn(2, 4)).sum().backward()
    one.zero_grad()


def messages() -> dict[str, str]:
    """All of them; each begins without optimizers of the one before."""
    hvd.init()
    every = (alone, gan, halves, three, critic_steps, accumulation, shared, plain_mistake)
    result = {case.__name__: error_of(case) for case in every}
    hvd.shutdown()
    return result


def remedies() -> bool:
    """Each piece of the advice works: the ranks train, and agree."""
    hvd.init()
    torch.manual_seed(1)
    generator, critic = net(3, 4), net(4, 1)
    one = wrapped(generator.named_parameters(), torch.optim.Adam)
    two = wrapped(critic.named_parameters(), torch.optim.Adam)
    torch.manual_seed(hvd.rank())
    for turn in range(6):
        one.zero_grad()
        critic.requires_grad_(turn % 3 != 0)
        critic(generator(torch.randn(8, 3))).sum().backward()
        critic.requires_grad_(True)
        if turn % 3 == 1:
            two.synchronize()
        one.step()
        if turn % 3 == 2:
            two.step()
        two.zero_grad()
        critic(generator(torch.randn(8, 3)).detach()).sum().backward()
        two.step()
    mine = torch.cat([p.detach().flatten() for n in (generator, critic) for p in n.parameters()])
    every = hvd.allgather(mine[None])
    return bool((every[0] == every[-1]).all())


def horovods_attributes() -> None:
    """By these clients recognise a distributed optimizer."""
    hvd.init()
    model = net(4, 1)
    options: list[dict[str, Any]] = [{}, {"op": hvd.Adasum}, {"groups": 2}]
    options += [{"compression": hvd.Compression.fp16}, {"backward_passes_per_step": 2}]
    for more in options:
        optimizer = wrapped(model.named_parameters(), **more)
        names = {p: name for name, p in model.named_parameters()}
        assert optimizer._parameter_names == names
        assert optimizer._requires_update == set(names)
        assert optimizer.backward_passes_per_step == more.get("backward_passes_per_step", 1)
        assert optimizer._compression is more.get("compression", hvd.Compression.none)
        assert hasattr(optimizer, "_allreduce_grad_async")
    optimizer = wrapped(model.named_parameters(), op=hvd.Sum)
    weight = model[0].weight
    weight.grad = torch.full_like(weight, float(hvd.rank() + 1))
    handle, context = optimizer._allreduce_grad_async(weight)
    reduced = optimizer._compression.decompress(hvd.synchronize(handle), context)
    assert bool((reduced == sum(range(1, hvd.size() + 1))).all())
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
    [warning] = seen
    beginning = (
        "optimizer.step() called without optimizer.skip_synchronize() context after "
        "optimizer.synchronize(). This can cause training slowdown"
    )
    assert str(warning.message).startswith(beginning), warning.message
