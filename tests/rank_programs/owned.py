"""A small training with DistributedOptimizer that also calls operations which are no gradients."""

from __future__ import annotations


def train(steps: int, groups: int | None = None) -> None:
    """Two metrics one by one, an object and a gathered tensor in every step."""
    import torch

    import hvdtune.torch as hvd

    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        groups=groups,
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 64)).mean()
        hvd.allreduce(loss.detach(), name="loss")
        loss.backward()
        optimizer.step()
        hvd.broadcast_object({"step": step}, name="state")
        hvd.allgather(torch.ones(3), name="seen")
        for metric in range(5):
            hvd.allreduce(torch.tensor(float(metric)), name=f"metric.{metric}")
        for _ in range(20):
            hvd.allreduce(torch.ones(7))
    hvd.shutdown()
