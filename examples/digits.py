"""Handwritten digits with PyTorch, distributed the way Horovod's guide teaches.

    hvdtune run -np 4 python examples/digits.py

The training set is scikit-learn's: 1797 real scans of 8 x 8 pixels. ``--batch-size`` counts the
images of all ranks together, and every rank takes its share of each batch, so the loss after every
step is the same with any number of ranks, up to rounding.
"""

import argparse
import hashlib

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, Dataset, TensorDataset

BASE_BATCH = 32  # the batch size that --lr is meant for


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 4 * 4, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x):
        x = (x - 0.3) / 0.38  # mean and deviation of the training set's pixels
        # Smooth functions only: at a kink, rounding alone can change the course of training.
        x = F.gelu(self.conv1(x))
        x = F.avg_pool2d(F.gelu(self.conv2(x)), 2)
        x = F.gelu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class BatchShare:
    """For every global batch, the indices of this rank's contiguous part of it."""

    def __init__(self, samples, batch_size, rank, size, seed):
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.share = batch_size // size
        self.offset = rank * self.share
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.samples // self.batch_size  # an incomplete last batch is left out

    def __iter__(self):
        # The same shuffle on every rank.
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.samples, generator=generator).tolist()
        for step in range(len(self)):
            start = step * self.batch_size + self.offset
            yield order[start : start + self.share]


class ShiftedDigits(Dataset):
    """Training images, shifted by up to one pixel, depending on epoch and image, not on rank."""

    def __init__(self, images, labels, seed):
        self.padded, self.labels, self.seed = F.pad(images, (1, 1, 1, 1)), labels, seed

    def set_epoch(self, epoch):
        generator = torch.Generator().manual_seed(self.seed + epoch)
        self.shifts = torch.randint(0, 3, (len(self), 2), generator=generator).tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        y, x = self.shifts[index]
        return self.padded[index, :, y : y + 8, x : x + 8], self.labels[index]


def datasets(seed):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return ShiftedDigits(x_train, y_train, seed), TensorDataset(x_test, y_test)


def accuracy(model, test_set, device):
    # Every rank tests a part; the counts are added up.
    images, labels = (part.to(device) for part in test_set[hvd.rank() :: hvd.size()])
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(test_set)


def weights_identical(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    digests = hvd.allgather(torch.tensor([list(digest.digest())], dtype=torch.uint8))
    return bool((digests == digests[0]).all())


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a digit classifier on several ranks.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=48, help="images of all ranks together")
    parser.add_argument("--lr", type=float, default=0.04, help=f"for a batch of {BASE_BATCH}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loss-log", metavar="FILE", help="write the loss of every step as CSV")
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
    if hvd.local_size() > 1:
        torch.set_num_threads(1)  # the ranks share this machine's cores
    device = torch.device(args.device)
    if args.device == "cuda":
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())

    # 2. Give every rank its part of the data.
    train_set, test_set = datasets(args.seed)
    sampler = BatchShare(len(train_set), args.batch_size, hvd.rank(), hvd.size(), args.seed)
    loader = DataLoader(train_set, batch_sampler=sampler)

    # 3. Scale the learning rate with the batch that all ranks see together.
    model = Net().to(device)
    learning_rate = args.lr * args.batch_size / BASE_BATCH
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

    # 4. Average gradients over the ranks.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 5. Start from the same state everywhere.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_set.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(hvd.allreduce(loss.detach(), name="loss").item())
        scheduler.step()
        test_accuracy = accuracy(model, test_set, device)
        # 6. Report on one rank only.
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2}: loss {losses[-1]:.4f}, test accuracy {test_accuracy:.4f}")

    if not weights_identical(model):
        raise SystemExit(f"rank {hvd.rank()}: the ranks ended with different weights")
    if hvd.rank() == 0:
        if args.loss_log:
            with open(args.loss_log, "w", encoding="utf-8") as file:
                file.write("step,loss\n")
                file.writelines(f"{step},{loss!r}\n" for step, loss in enumerate(losses))
        print(f"final test accuracy {test_accuracy:.4f}; weights identical on all ranks")


if __name__ == "__main__":
    main()
