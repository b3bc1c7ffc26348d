"""Handwritten digits with PyTorch Lightning, one process per rank.

    hvdtune run -np 4 python examples/lightning_digits.py

``--batch-size`` counts the images of one rank: more ranks see more images in a step, and an epoch
has fewer steps.
"""

import argparse

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from hvdtune.lightning import HvdtuneStrategy


class Digits(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, padding=1),
            torch.nn.GELU(),
            torch.nn.Conv2d(16, 32, 3, padding=1),
            torch.nn.GELU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 4 * 4, 64),
            torch.nn.GELU(),
            torch.nn.Linear(64, 10),
        )
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, index):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.accuracy(self.net(images), labels)
        # A metric object gathers its counts over the ranks by itself.
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def datasets():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.3
    labels = torch.tensor(digits.target)
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return TensorDataset(split[0], split[2]), TensorDataset(split[1], split[3])


def main():
    parser = argparse.ArgumentParser(description="Train a digit classifier with Lightning.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images of one rank")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--directory", default="lightning_digits", help="for checkpoints")
    args = parser.parse_args()

    pl.seed_everything(1)
    best = ModelCheckpoint(args.directory, monitor="accuracy", mode="max")
    trainer = pl.Trainer(
        strategy=HvdtuneStrategy(),
        accelerator="cpu",
        devices=1,
        max_epochs=args.epochs,
        callbacks=[best, EarlyStopping("accuracy", mode="max", patience=5)],
        logger=False,
        enable_progress_bar=False,
    )
    if trainer.world_size > 1:
        torch.set_num_threads(1)  # the ranks share this machine's cores
    # Lightning gives every rank its part of both data sets.
    train_set, test_set = datasets()
    model = Digits(args.lr)
    trainer.fit(
        model,
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        DataLoader(test_set, batch_size=64),
    )
    loss = trainer.callback_metrics["loss"]
    trainer.print(
        f"loss {loss:.4f} on {trainer.world_size} rank(s), "
        f"best test accuracy {best.best_model_score:.4f}, saved as {best.best_model_path}"
    )


if __name__ == "__main__":
    main()
