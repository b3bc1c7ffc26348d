"""Two networks, two optimizers: a generative adversarial network.

    hvdtune run -np 4 python examples/gan.py

The generator learns to draw points like those of a tilted ellipse; the discriminator learns to tell
these from real ones. Two things need care with several optimizers in one process:

* The backward pass of the generator's loss runs through the discriminator, which is frozen during
  this pass. Otherwise the discriminator's gradients would also be computed, its optimizer would
  begin to reduce them, and its next ``zero_grad()`` would raise an error.
* Gradients are identified by name. ``prefix`` keeps the names of the two networks apart.

``--batch-size`` counts the points of all ranks together. Real points and noise are dealt to the
ranks in turn, so together they see what a single process would see, and the weights are the same
for any number of ranks, up to rounding. (Two competing networks can amplify rounding differences
more than a single one. This pair does not; with ``--lr 0.01`` it begins to.)
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CENTRE = torch.tensor([1.0, -0.5])  # of the real points
SHAPE = torch.tensor([[0.5, 0.3], [0.0, 0.2]])
NOISE = 4  # the generator's inputs


def network(inputs, outputs):
    # Smooth functions only: at the kink of a ReLU rounding alone can switch a unit on or off.
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 48),
        torch.nn.Tanh(),
        torch.nn.Linear(48, 48),
        torch.nn.Tanh(),
        torch.nn.Linear(48, outputs),
    )


def ellipse(points):
    """Points of a normal distribution that is longer than wide, tilted, and not at the origin."""
    generator = torch.Generator().manual_seed(0)
    return CENTRE + torch.randn(points, 2, generator=generator) @ SHAPE


class SharedNoise:
    """Each call returns this rank's rows of noise that is drawn identically on all ranks."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        everyones = torch.randn(rows * hvd.size(), NOISE, generator=self.generator)
        return everyones[hvd.rank() :: hvd.size()]


def train_discriminator(generator, discriminator, optimizer, real, noise):
    optimizer.zero_grad()
    with torch.no_grad():
        fake = generator(noise)
    # softplus(-x) is the cross-entropy for "real", softplus(x) for "fake".
    loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_generator(generator, discriminator, optimizer, noise):
    optimizer.zero_grad()
    discriminator.requires_grad_(False)
    loss = F.softplus(-discriminator(generator(noise))).mean()
    loss.backward()
    optimizer.step()
    discriminator.requires_grad_(True)
    return loss.detach()


def error_of_centre(generator, noise):
    """The distance between the centres of all ranks' generated points and of the real ones."""
    with torch.no_grad():
        centre = hvd.allreduce(generator(noise).mean(dim=0), name="centre")
    return (centre - CENTRE).norm().item()


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a GAN on several ranks.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="points of all ranks together")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE", help="write both networks' final weights")
    return parser, parser.parse_args()


def main():
    parser, args = parse_arguments()
    hvd.init()
    if args.batch_size <= 0 or args.batch_size % hvd.size() != 0:
        parser.error(
            f"--batch-size {args.batch_size} cannot be divided evenly among {hvd.size()} ranks"
        )
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the ranks share this machine's cores

    share = args.batch_size // hvd.size()
    data = TensorDataset(ellipse(1024))
    sampler = DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True
    )
    loader = DataLoader(data, batch_size=share, sampler=sampler, drop_last=True)
    noise = SharedNoise(args.seed)

    networks = {"generator": network(NOISE, 2), "discriminator": network(2, 1)}
    optimizers = {}
    for name, net in networks.items():
        optimizer = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.5, 0.999))
        optimizers[name] = hvd.DistributedOptimizer(
            optimizer, named_parameters=net.named_parameters(prefix=name)
        )
        hvd.broadcast_parameters(net.state_dict(prefix=f"{name}."), root_rank=0)
        hvd.broadcast_optimizer_state(optimizers[name], root_rank=0)
    generator, discriminator = networks.values()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses = torch.zeros(2)
        for (real,) in loader:
            losses += torch.stack(
                [
                    train_discriminator(
                        generator, discriminator, optimizers["discriminator"], real, noise(share)
                    ),
                    train_generator(
                        generator, discriminator, optimizers["generator"], noise(share)
                    ),
                ]
            )
        losses = hvd.allreduce(losses / len(loader), name="losses").tolist()
        error = error_of_centre(generator, noise(share))
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1:2}: loss of the discriminator {losses[0]:.4f}, of the generator "
                f"{losses[1]:.4f}; its points' centre is off by {error:.2f}"
            )

    if hvd.rank() == 0 and args.save:
        torch.save({name: net.state_dict() for name, net in networks.items()}, args.save)


if __name__ == "__main__":
    main()
