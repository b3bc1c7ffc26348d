"""Mixed precision and gradient clipping: what may happen between backward() and step().

    hvdtune run -np 4 python examples/mixed_precision.py

The network separates the arms of three spirals. Weights, gradients and the optimizer are float32;
autocast computes the layers in float16 (or bfloat16 with ``--dtype bfloat16``). float16 has a
narrow range, so GradScaler multiplies the loss by a large number and later divides the gradients by
it. Both this division and clipping must see the gradients of *all* ranks:

    scaler.scale(loss).backward()          # the engine reduces while this runs
    optimizer.synchronize()                # now the gradients are those of the whole batch
    scaler.unscale_(optimizer)             # an overflow on any rank is seen by every rank
    clip_grad_norm_(...)                   # the norm is the same everywhere
    with optimizer.skip_synchronize():     # they are reduced already
        scaler.step(optimizer)

A gradient computed in float16 is rounded to 11 bits once per backward pass. To make the rounding
independent of the number of ranks, a batch always consists of the same pieces of ``--piece``
points with one backward pass each, and a rank takes a number of neighbouring pieces. Their
gradients are summed in float32, and the trained weights are the same for any number of ranks.
"""

import argparse
import math

import horovod.torch as hvd
import torch
import torch.nn.functional as F

ARMS = 3


def spirals(points):
    """Points along three noisy spiral arms: coordinates and the arm of each."""
    generator = torch.Generator().manual_seed(0)
    arm = torch.arange(points) % ARMS
    radius = torch.rand(points, generator=generator).sqrt()
    angle = 4 * radius + 2 * math.pi / ARMS * arm
    angle += 0.15 * torch.randn(points, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def network():
    # Smooth functions only: at the kink of a ReLU rounding alone can switch a unit on or off.
    return torch.nn.Sequential(
        torch.nn.Linear(2, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, ARMS),
    )


class Pieces:
    """This rank's pieces of every batch, as tensors of indices."""

    def __init__(self, samples, batch_size, piece, seed):
        self.samples, self.batch_size, self.piece, self.seed = samples, batch_size, piece, seed

    def batches(self, epoch):
        """This rank's pieces, for every batch of the epoch."""
        # The same shuffle on every rank.
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(self.samples, generator=generator)
        share = self.batch_size // hvd.size()
        for start in range(0, self.samples - self.batch_size + 1, self.batch_size):
            first = start + hvd.rank() * share
            yield order[first : first + share].split(self.piece)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train in mixed precision on several ranks.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="points of all ranks together")
    parser.add_argument("--piece", type=int, default=16, help="points of one backward pass")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--clip", type=float, default=1.0, help="greatest norm of the gradient")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE", help="write the final weights")
    return parser, parser.parse_args()


def main():
    parser, args = parse_arguments()
    hvd.init()
    if min(args.batch_size, args.piece) <= 0 or args.batch_size % (args.piece * hvd.size()) != 0:
        parser.error(
            f"--batch-size {args.batch_size} does not give each of {hvd.size()} ranks the same "
            f"number of whole pieces of {args.piece}"
        )
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the ranks share this machine's cores

    inputs, labels = spirals(1920)
    pieces = Pieces(len(inputs), args.batch_size, args.piece, args.seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    # The gradients of all pieces of all ranks are summed: a point always counts 1 / batch size, so
    # the scaled loss, and with it the rounding in float16, is the same for any number of ranks.
    # Averages would make the numbers smaller if a rank has more pieces.
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.batch_size // hvd.size() // args.piece,
        op=hvd.Sum,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    dtype = getattr(torch, args.dtype)
    # bfloat16 has the range of float32 and needs no scaling.
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)

    for epoch in range(args.epochs):
        loss_sum = torch.zeros(())
        clipped = 0
        steps = 0
        for batch in pieces.batches(epoch):
            optimizer.zero_grad()
            for piece in batch:
                with torch.autocast("cpu", dtype=dtype):
                    output = model(inputs[piece])
                    loss = F.cross_entropy(output, labels[piece], reduction="sum") / args.batch_size
                scaler.scale(loss).backward()
                loss_sum += loss.detach()

            optimizer.synchronize()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            clipped += int(norm > args.clip)
            steps += 1
        loss = hvd.allreduce(loss_sum / steps, op=hvd.Sum, name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2}: loss {loss:.4f}, {clipped} of {steps} gradients clipped")

    if hvd.rank() == 0 and args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
