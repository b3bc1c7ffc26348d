"""Ranks that run out of data at different times: join().

    hvdtune run -np 4 python examples/uneven_data.py

The training data are recordings of different lengths, dealt to the ranks. A rank reads its
recordings side by side, ``--lines`` lines of each per step, so the ranks make different numbers of
steps. A rank that has no data left calls ``join()``: from then on it contributes only zeros to what
the others reduce, until all have joined.

* The ranks reduce sums, not averages: ``op=hvd.Average`` divides by the number of all ranks, joined
  or not. Instead, every line here counts 1 / (number of lines in a full step), so the last steps,
  with fewer lines, are smaller.
* A rank that has joined makes no steps: its weights are those of its last step. ``join()`` returns
  the rank that joined last, whose weights are the newest; all ranks copy them.

The trained weights are the same with any number of ranks, up to rounding.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F

RECORDINGS = (150, 340, 70, 410)  # how many lines each has


def network():
    # Smooth functions only: at the kink of a ReLU rounding alone can switch a unit on or off.
    return torch.nn.Sequential(
        torch.nn.Linear(3, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 1),
    )


def recording(number):
    """A recording's inputs (lines x 3) and targets (lines x 1)."""
    generator = torch.Generator().manual_seed(number)
    inputs = 2 * torch.rand(RECORDINGS[number], 3, generator=generator) - 1
    targets = (3 * inputs[:, 0]).sin() + inputs[:, 1] * inputs[:, 2]
    return inputs, targets.unsqueeze(1)


def own_batches(recordings, lines):
    """The next ``lines`` lines of every unfinished recording, side by side."""
    longest = max((len(inputs) for inputs, _ in recordings), default=0)
    for start in range(0, longest, lines):
        rows = slice(start, start + lines)
        yield (
            torch.cat([inputs[rows] for inputs, _ in recordings]),
            torch.cat([targets[rows] for _, targets in recordings]),
        )


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train on uneven data on several ranks.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lines", type=int, default=10, help="lines of each recording in a step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE", help="write the final weights")
    return parser, parser.parse_args()


def main():
    parser, args = parse_arguments()
    if args.lines <= 0:
        parser.error(f"--lines {args.lines} must be greater than 0")
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the ranks share this machine's cores

    # Some ranks may have more recordings than others, or none: the data are then even more uneven.
    recordings = [recording(i) for i in range(hvd.rank(), len(RECORDINGS), hvd.size())]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        loss_sum = torch.zeros(())
        steps = 0
        for inputs, targets in own_batches(recordings, args.lines):
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets, reduction="sum")
            (loss / (len(RECORDINGS) * args.lines)).backward()
            optimizer.step()
            loss_sum += loss.detach()
            steps += 1

        last = hvd.join()
        # All ranks are in step again, so any operation may be used.
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        loss = hvd.allreduce(loss_sum, op=hvd.Sum, name="loss").item() / sum(RECORDINGS)
        all_steps = hvd.allgather(torch.tensor([steps]), name="steps").tolist()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2}: loss {loss:.4f}; steps of the ranks: {all_steps}")

    if hvd.rank() == 0 and args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
