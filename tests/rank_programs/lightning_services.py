"""Rank program: Lightning over the ranks: training, all around it, and failures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins import TorchCheckpointIO
from rank_programs import lightning_training
from rank_programs.lightning_cases import (
    BATCH,
    STEPS,
    Module,
    assert_equal,
    dataset,
    fit,
    loader,
    new_trainer,
)
from rank_programs.torch_cases import error_of, run_checks
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MeanSquaredError

import hvdtune.torch as hvd
from hvdtune.lightning import HvdtuneStrategy

ROWS = BATCH * STEPS


class Weighted(Module):
    """Logs the mean of its rows."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", batch[0][:, 0].mean(), sync_dist=True, batch_size=len(batch[0]))


def means_over_unequal_parts() -> None:
    """A rank counts as much as it has rows."""
    values = torch.arange(1.0, 2 * hvd.size() + 2)  # rank 0 has a row more than the others
    own = values[hvd.rank() :: hvd.size()].unsqueeze(1)
    data = DataLoader(TensorDataset(own.repeat(1, 4), own), batch_size=len(own))
    trainer = new_trainer(True)
    [got] = trainer.validate(Weighted(0), data, verbose=False)
    assert math.isclose(float(got["val"]), float(values.mean()), rel_tol=1e-6), got
    mean = trainer.strategy.reduce(torch.tensor(hvd.rank() + 1))
    assert math.isclose(float(mean), (hvd.size() + 1) / 2)


class Evaluated(Module):
    """Logs a loss and a metric of its own wherever it runs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.error = MeanSquaredError()
        self.inputs = CatMetric()

    def evaluate(self, batch: Any, stage: str) -> None:
        predicted = self.net(batch[0])
        self.error(predicted, batch[1])
        # Metrics with as many entries as there were rows, another number on every rank.
        self.inputs.update(batch[0][: self.global_rank + 1, 0])
        self.log(f"{stage}_loss", mse_loss(predicted, batch[1]), sync_dist=True)
        self.log(f"{stage}_error", self.error)
        self.log(f"{stage}_most", batch[0].max(), sync_dist=True, reduce_fx="max")

    def validation_step(self, batch: Any, index: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, index: int) -> None:
        self.evaluate(batch, "test")

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.net(batch[0])

    def on_validation_epoch_end(self) -> None:
        self.entries = self.inputs.compute().numel()


def close(got: Any, expected: Any) -> bool:
    return bool(torch.isclose(torch.as_tensor(got), torch.as_tensor(expected), rtol=1e-5))


def evaluation() -> None:
    module = Evaluated(hvd.rank())
    trainer = new_trainer(True, use_distributed_sampler=True)
    every = Evaluated(0)
    inputs, targets = dataset().tensors
    with torch.no_grad():
        expected = mse_loss(every.net(inputs), targets)
    # Lightning shares the rows out by itself; 60 rows divide evenly.
    [values] = trainer.validate(module, DataLoader(dataset(), batch_size=6), verbose=False)
    assert_equal(module, every, "evaluated with the weights of rank 0")
    assert close(values["val_loss"], expected)
    assert close(values["val_error"], expected)
    assert close(values["val_most"], inputs.max())
    rows = ROWS // hvd.size()
    sizes = [len(rows_) for rows_ in torch.arange(rows).split(6)]
    assert module.entries == sum(min(r + 1, n) for r in range(hvd.size()) for n in sizes)
    [values] = trainer.test(module, DataLoader(dataset(), batch_size=6), verbose=False)
    assert close(values["test_error"], expected)
    predictions = trainer.predict(module, DataLoader(dataset(), batch_size=6))
    assert predictions is not None
    with torch.no_grad():
        mine = every.net(inputs[hvd.rank() :: hvd.size()])
    assert bool(torch.isclose(torch.cat(predictions), mine, rtol=1e-4, atol=1e-6).all())


class Seen(Module):
    def __init__(self) -> None:
        super().__init__(0)
        self.rows: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.rows.extend(batch[0][:, 0].tolist())
        return super().training_step(batch, index)


def samplers_and_logs() -> None:
    module = Seen()
    trainer = new_trainer(True, use_distributed_sampler=True)
    trainer.fit(module, DataLoader(dataset(), batch_size=3, shuffle=True))
    assert len(module.rows) == ROWS // hvd.size()
    everybodys = sorted(row for rows in hvd.allgather_object(module.rows) for row in rows)
    assert everybodys == sorted(dataset().tensors[0][:, 0].tolist())
    alone = Module(0)
    log = fit(alone, False).callback_metrics["loss"]
    assert close(fit(Module(hvd.rank()), True).callback_metrics["loss"], log)


class CountingIO(TorchCheckpointIO):
    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.saved.append(Path(path).name)
        super().save_checkpoint(checkpoint, path, storage_options)


def checkpoints() -> None:
    directory = Path.cwd() / "checkpoints"
    whole = Module(0)
    fit(whole, False, max_epochs=3)
    io = CountingIO()
    callback = ModelCheckpoint(directory, filename="{epoch}", save_top_k=-1)
    first = Module(hvd.rank())
    strategy = HvdtuneStrategy(checkpoint_io=io)
    fit(first, True, strategy=strategy, enable_checkpointing=True, callbacks=[callback])
    assert io.saved == (["epoch=0.ckpt"] if hvd.rank() == 0 else []), io.saved
    path = directory / "epoch=0.ckpt"
    assert callback.best_model_path == str(path)
    resumed = Module(100 + hvd.rank())
    trainer = new_trainer(True, max_epochs=3)
    trainer.fit(resumed, loader(True), ckpt_path=str(path))
    assert trainer.global_step == 3 * STEPS
    assert_equal(resumed, whole, "resumed")
    # The checkpoint is one of an ordinary optimizer and model, without a trace of the ranks.
    alone = Module(5)
    new_trainer(False, max_epochs=3).fit(alone, loader(False), ckpt_path=str(path))
    assert_equal(alone, whole, "resumed alone")


class Worse(Module):
    """Its loss on the validation data goes up on the last rank only, from epoch 2 on."""

    def validation_step(self, batch: Any, index: int) -> None:
        last = self.global_rank == self.trainer.world_size - 1
        epoch = self.current_epoch
        self.log("val", torch.tensor(float(epoch if last and epoch >= 2 else -epoch)))


def early_stopping() -> None:
    trainer = new_trainer(
        True, max_epochs=9, callbacks=[EarlyStopping("val", patience=0)], num_sanity_val_steps=0
    )
    trainer.fit(Worse(0), loader(True), loader(True))
    assert trainer.current_epoch == 3, trainer.current_epoch


def collectives() -> None:
    rank, size = hvd.rank(), hvd.size()
    module = Module(0)
    trainer = fit(module, True, limit_train_batches=0)
    strategy = trainer.strategy
    assert (trainer.global_rank, trainer.world_size, trainer.local_rank) == (rank, size, rank)
    assert trainer.is_global_zero == (rank == 0)
    reduce_op = torch.distributed.ReduceOp
    value = torch.tensor([float(rank + 1)])
    total = sum(range(1, size + 1))
    for op, expected in (
        ("mean", total / size),
        (None, total / size),
        ("sum", total),
        (reduce_op.SUM, total),
        (reduce_op.AVG, total / size),
        ("min", 1),
        (reduce_op.MAX, size),
    ):
        assert close(strategy.reduce(value, reduce_op=op), [float(expected)]), op
    assert strategy.reduce("text") == "text"
    assert value.item() == rank + 1
    error_of(lambda: strategy.reduce(value, reduce_op="median"), ValueError, "'median'", "mean")
    assert strategy.reduce_boolean_decision(True)
    assert not strategy.reduce_boolean_decision(rank != 0)
    assert strategy.reduce_boolean_decision(rank == 0, all=False)
    assert strategy.broadcast({"from": rank}, src=size - 1) == {"from": size - 1}
    assert strategy.broadcast("x" if rank == 0 else None) == "x"
    strategy.barrier("here")
    if size > 1:
        gathering(module)
    else:
        assert torch.equal(module.all_gather(value), value)


def gathering(module: Module) -> None:
    rank, size = hvd.rank(), hvd.size()
    gathered = module.all_gather(
        {"a": torch.tensor([float(rank + 1)]), "b": torch.full((2, 3), rank)}
    )
    assert gathered["a"].tolist() == [[float(r + 1)] for r in range(size)]
    assert gathered["b"].shape == (size, 2, 3)
    # Rank r weighs everybody's part with r + 1: the gradient is the sum of the weights.
    leaf = torch.tensor([float(rank)], requires_grad=True)
    ((rank + 1) * module.all_gather(leaf, sync_grads=True).sum()).backward()
    assert leaf.grad is not None
    assert leaf.grad.item() == sum(range(1, size + 1))


class Fails(Module):
    """Rank 1 has an accident in its third step."""

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if self.global_rank == 1 and index == 2:
            raise ArithmeticError("an accident on rank 1")
        return super().training_step(batch, index)


def failures() -> None:
    """One rank fails: all end with an error, and the next run starts a new job."""
    hvd.shutdown()  # so that the strategy is who starts the job
    path = Path.cwd() / "after_failure"
    trainer = new_trainer(True, enable_checkpointing=True, callbacks=[OnExceptionCheckpoint(path)])
    size, rank, data = trainer.world_size, trainer.global_rank, loader(True)
    with pytest.raises((ArithmeticError, hvd.HorovodInternalError)) as caught:
        trainer.fit(Fails(0), data)
    assert caught.type is (ArithmeticError if rank == 1 else hvd.HorovodInternalError)
    assert not hvd.is_initialized()
    # Rank 0 could write the checkpoint although the others were elsewhere.
    assert rank != 0 or list(path.glob("*.ckpt"))
    alone, module = Module(0), Module(rank)
    trainer.callbacks.clear()
    trainer.fit(module, data)
    assert (hvd.rank(), hvd.size()) == (rank, size)
    fit(alone, False)
    assert_equal(module, alone, "after a failure")


def mistakes() -> None:
    def trainer(**options: Any) -> pl.Trainer:
        return pl.Trainer(strategy=HvdtuneStrategy(), accelerator="cpu", logger=False, **options)

    count = hvd.local_size() + 1
    error_of(lambda: trainer(devices=count), ValueError, f"devices={count}", "hvdtune run -np")
    assert trainer(devices=hvd.local_size()).num_devices == 1
    gpu = HvdtuneStrategy()
    gpu.parallel_devices = [torch.device("cuda", 0)]
    error_of(gpu.set_world_ranks, ValueError, "cuda:0", "accelerator='cpu'")


def run() -> list[str]:
    hvd.init()
    torch.set_num_threads(1)
    checks = [
        evaluation,
        means_over_unequal_parts,
        samplers_and_logs,
        checkpoints,
        collectives,
        mistakes,
    ]
    if hvd.size() > 1:
        checks += [*lightning_training.CHECKS, early_stopping, failures]
    return run_checks(*checks)
