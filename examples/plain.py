"""A PyTorch training script and the eight things that Horovod adds to it, numbered.

    hvdtune run -np 4 python examples/plain.py

The network learns the handwritten digits that come with scikit-learn. ``--batch-size`` counts the
images of all ranks together: the average of the ranks' gradients is then the gradient of the whole
batch, and the trained weights are the same with any number of ranks, up to rounding.

With ``--checkpoint FILE`` the state is saved after every epoch, and a run that finds FILE continues
from there, with any number of ranks:

    hvdtune run -np 2 python examples/plain.py --epochs 2 --checkpoint digits.pt
    hvdtune run -np 4 python examples/plain.py --epochs 4 --checkpoint digits.pt
"""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden1 = torch.nn.Linear(64, 64)
        self.hidden2 = torch.nn.Linear(64, 32)
        self.output = torch.nn.Linear(32, 10)

    def forward(self, x):
        # Smooth functions only: at the kink of a ReLU rounding alone can switch a unit on or off.
        return self.output(F.gelu(self.hidden2(F.gelu(self.hidden1(x)))))


def datasets():
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1440], order[1440:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_epoch(model, optimizer, loader):
    """One pass over this rank's part of the data; returns the mean loss of all ranks."""
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    # 7. Average metrics over the ranks. Every rank must do this, although only one prints.
    return hvd.allreduce(torch.stack(losses).mean(), name="train_loss").item()


def test_accuracy(model, test_set):
    # Every rank tests a part; the counts are added up.
    images, labels = test_set[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(test_set)


def save_checkpoint(path, model, optimizer, epochs):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)  # an interrupted run still has the old one


def load_checkpoint(path, model, optimizer):
    """Restore both and return the number of finished epochs; 0 if there is no checkpoint yet."""
    if not path or not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epochs"]


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a digit classifier on several ranks.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=48, help="images of all ranks together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", metavar="FILE", help="continue from FILE; keep it current")
    parser.add_argument("--save", metavar="FILE", help="write the final weights")
    return parser, parser.parse_args()


def main():
    parser, args = parse_arguments()

    # 1. Initialise.
    hvd.init()
    if args.batch_size <= 0 or args.batch_size % hvd.size() != 0:
        parser.error(
            f"--batch-size {args.batch_size} cannot be divided evenly among {hvd.size()} ranks"
        )
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the ranks share this machine's cores

    # 2. Give every rank its part of the data: the sampler deals the shuffled indices out in turn,
    #    so the ranks' k-th batches together are the k-th batch of a single process.
    train_set, test_set = datasets()
    sampler = DistributedSampler(
        train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True
    )
    loader = DataLoader(
        train_set, batch_size=args.batch_size // hvd.size(), sampler=sampler, drop_last=True
    )

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    # 3. Average the gradients over the ranks.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 4. Only rank 0 reads the checkpoint; the others need not even see the file.
    epochs_done = 0
    if hvd.rank() == 0:
        epochs_done = load_checkpoint(args.checkpoint, model, optimizer)
    epochs_done = hvd.broadcast_object(epochs_done, root_rank=0, name="epochs_done")

    # 5. Start from the same weights and the same optimizer state everywhere.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(epochs_done, args.epochs):
        # 6. A new shuffle every epoch, the same on all ranks.
        sampler.set_epoch(epoch)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * 0.8**epoch
        loss = train_epoch(model, optimizer, loader)
        accuracy = test_accuracy(model, test_set)
        # 8. Print and write on one rank only.
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {accuracy:.4f}")
            if args.checkpoint:
                save_checkpoint(args.checkpoint, model, optimizer, epoch + 1)

    if hvd.rank() == 0 and args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
