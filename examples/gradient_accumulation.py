"""Batches larger than memory: several backward passes per step, and gradients sent in groups.

    hvdtune run -np 4 python examples/gradient_accumulation.py

A recurrent network learns to continue waves of unknown frequency. A step is made from
``--batch-size`` waves, but a rank holds only ``--micro-batch`` in memory at a time: with
``backward_passes_per_step`` the gradients add up on the rank, and only the last pass sends them to
the other ranks. The step is the same for any number of ranks, up to rounding.

``groups`` says which gradients are reduced together. Here each layer is a group. With a number
(``--groups 2``) there are that many groups, with about the same number of parameters each.
"""

import argparse
import math

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Continue(torch.nn.Module):
    """Predicts the next value of a wave after each of its values."""

    def __init__(self, width=24):
        super().__init__()
        self.recurrent1 = torch.nn.GRU(1, width, batch_first=True)
        self.recurrent2 = torch.nn.GRU(width, width, batch_first=True)
        self.output = torch.nn.Linear(width, 1)

    def forward(self, waves):
        states, _ = self.recurrent1(waves)
        states, _ = self.recurrent2(states)
        return self.output(states)


def waves(count, length=16):
    """``count`` x ``length`` x 1: sines of random frequency and phase."""
    generator = torch.Generator().manual_seed(0)
    frequency = 0.2 + 0.6 * torch.rand(count, 1, generator=generator)
    phase = 2 * math.pi * torch.rand(count, 1, generator=generator)
    return torch.sin(frequency * torch.arange(length) + phase).unsqueeze(2)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Accumulate gradients on several ranks.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="waves of all ranks in a step")
    parser.add_argument("--micro-batch", type=int, default=8, help="waves in one backward pass")
    parser.add_argument("--groups", type=int, help="how many groups (default: one for each layer)")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE", help="write the final weights")
    return parser, parser.parse_args()


def main():
    parser, args = parse_arguments()
    hvd.init()
    if (
        min(args.batch_size, args.micro_batch) <= 0
        or args.batch_size % (args.micro_batch * hvd.size()) != 0
    ):
        parser.error(
            f"--batch-size {args.batch_size} is not a multiple of {hvd.size()} ranks x "
            f"--micro-batch {args.micro_batch}"
        )
    passes = args.batch_size // (args.micro_batch * hvd.size())
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the ranks share this machine's cores

    data = TensorDataset(waves(512))
    sampler = DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True
    )
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler, drop_last=True)

    model = Continue()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        groups=args.groups or [list(layer.parameters()) for layer in model.children()],
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(())
        for number, (batch,) in enumerate(loader, start=1):
            loss = F.mse_loss(model(batch[:, :-1]), batch[:, 1:])
            # Passes are summed and ranks are averaged, so what remains is to average the passes.
            (loss / passes).backward()
            loss_sum += loss.detach()
            if number % passes == 0:
                optimizer.step()
                optimizer.zero_grad()
        loss = hvd.allreduce(loss_sum / len(loader), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, {passes} backward passes per step")

    if hvd.rank() == 0 and args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
