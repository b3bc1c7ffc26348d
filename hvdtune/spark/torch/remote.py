"""Trains a PyTorch model on one rank."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import hvdtune.torch as hvd
from hvdtune.spark.common.plan import TrainingPlan, endless, sizes_of
from hvdtune.spark.task import get_available_devices
from hvdtune.spark.torch.objective import Objective, as_inputs, constructed, dtype_of
from hvdtune.spark.torch.serialization import dumps, loads


@dataclass
class TorchProgram:
    """The model to train, and how; one pickle, so that the optimizer keeps its parameters."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[Callable[..., Any]] | None
    loss_constructors: list[Callable[..., Any]] | None
    metrics: list[list[Callable[..., Any]]]  # for each metric, a function for each label
    input_shapes: list[Any] | None
    train_minibatch_fn: Callable[..., Any] | None


@dataclass
class TorchResult:
    """Rank 0's result: the metrics, the final state, the outputs' sizes."""

    history: list[dict[str, Any]]
    checkpoint: bytes
    output_sizes: list[int]


def train(plan: TrainingPlan, program: bytes, checkpoint: bytes | None) -> TorchResult | None:
    """Train on this rank. Returns rank 0's result, and None on the others.

    checkpoint: that of an earlier run with the same name; training continues from it.
    """
    hvd.init()
    try:
        return _Training(plan, loads(program), checkpoint).run()
    finally:
        hvd.shutdown()


class _Training:
    def __init__(self, plan: TrainingPlan, program: TorchProgram, checkpoint: bytes | None) -> None:
        self.plan, self.program = plan, program
        if plan.random_seed is not None:
            torch.manual_seed(plan.random_seed + hvd.rank())
        self.device = _device(plan.use_gpu)
        self.model = program.model.to(self.device)
        self.dtype = dtype_of(self.model)
        optimizer = program.optimizer
        self._resume(optimizer, checkpoint)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            compression=plan.gradient_compression or hvd.Compression.none,
            backward_passes_per_step=plan.backward_passes_per_step,
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.objective = Objective(self._losses(), plan.loss_weights, plan.label_shapes)
        self.output_sizes: list[int] = []
        self.passes = 0

    def _resume(self, optimizer: torch.optim.Optimizer, checkpoint: bytes | None) -> None:
        """Load a checkpoint; scale learning rates for the number of ranks."""
        ranks_before = 1
        if checkpoint is not None:
            state = loads(checkpoint)
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            ranks_before = state["ranks"]
        else:
            optimizer.load_state_dict(optimizer.state_dict())  # moves the state to the device
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = group["lr"] * hvd.size() / ranks_before

    def _losses(self) -> list[Callable[..., Any]]:
        given = self.program.losses
        if given is not None:
            losses = given
        else:
            known = {"model": self.model, "optimizer": self.optimizer, "plan": self.plan}
            losses = constructed(self.program.loss_constructors or [], known)
        return [
            loss.to(self.device) if isinstance(loss, torch.nn.Module) else loss for loss in losses
        ]

    def run(self) -> TorchResult | None:
        plan = self.plan
        train_steps, val_steps = plan.steps(hvd.size())
        history = []
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(plan.data(hvd.rank(), hvd.size()))
            folder = stack.enter_context(self._output_folder())
            log = stack.enter_context(_event_log(folder, plan.store.logs_subdir))
            train_data = endless(data.train_data())
            val_data = endless(data.val_data()) if val_steps else iter(())
            state = b""
            for epoch in range(plan.epochs):
                told: dict[str, Any] = {"epoch": epoch}
                self.model.train()
                told["train"] = self._epoch("train", train_data, train_steps, self._step)
                if val_steps:
                    self.model.eval()
                    with torch.no_grad():
                        told["validation"] = self._epoch("val", val_data, val_steps, self._look)
                history.append(told)
                if hvd.rank() == 0:
                    state = self._save(folder, epoch)
                    log(told)
                    if plan.verbose:
                        print(f"{plan.run_id}: {_line(told, plan.epochs)}", flush=True)
        return TorchResult(history, state, self.output_sizes) if hvd.rank() == 0 else None

    @contextlib.contextmanager
    def _output_folder(self) -> Iterator[str | None]:
        if hvd.rank() == 0 and self.plan.store.saving_runs:
            with self.plan.store.get_local_output_dir() as folder:
                yield folder
        else:
            yield None

    def _epoch(
        self,
        stage: str,
        batches: Iterator[dict[str, Any]],
        steps: int,
        step: Callable[..., tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]],
    ) -> dict[str, Any]:
        """Run all steps of an epoch; returns means over steps and ranks."""
        groups = self.program.metrics
        sums: list[Any] = [0.0] * (1 + sum(map(len, groups)))
        for _ in range(steps):
            outputs, labels, loss = step(*self._batch(next(batches)))
            sums[0] += loss.detach()
            with torch.no_grad():
                values = [
                    metric(output.detach(), label)
                    for group in groups
                    for metric, output, label in zip(group, outputs, labels, strict=True)
                ]
            for place, value in enumerate(values, 1):
                sums[place] += value
        means = torch.tensor([float(one) / steps for one in sums], dtype=torch.float64)
        means = hvd.allreduce(means, name=f"estimator.{stage}.means")
        rest = iter(means[1:].tolist())
        labels_of = self.plan.label_columns
        return {
            "loss": means[0].item(),
            "all_metrics": [
                [
                    {f"{_name(metric)}_{label}": next(rest)}
                    for metric, label in zip(group, labels_of, strict=True)
                ]
                for group in groups
            ],
        }

    def _batch(
        self, batch: dict[str, Any]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]:
        plan = self.plan
        weight = plan.sample_weight_col
        inputs = as_inputs(
            self._columns(batch, plan.feature_columns), self.program.input_shapes, self.dtype
        )
        labels = self._columns(batch, plan.label_columns)
        weights = None if weight is None else self._columns(batch, [weight])[0]
        return inputs, labels, weights

    def _columns(self, batch: dict[str, Any], names: Sequence[str]) -> list[torch.Tensor]:
        for name in names:
            if not isinstance(batch.get(name), torch.Tensor):
                kind = getattr(batch.get(name), "dtype", "nothing")
                raise ValueError(f"column {name!r} is {kind}, not numbers: training needs numbers.")
        return [batch[name].to(self.device) for name in names]

    def _step(
        self,
        inputs: list[torch.Tensor],
        labels: list[torch.Tensor],
        weights: torch.Tensor | None,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        objective, optimizer = self.objective, self.optimizer
        own = self.program.train_minibatch_fn
        if own is not None:
            outputs, loss = own(
                self.model, optimizer, objective.transform_outputs, objective, inputs, labels,
                weights,
            )  # fmt: skip
            outputs, labels = objective.transform_outputs(outputs, labels)
        else:
            together = self.plan.backward_passes_per_step
            if self.passes % together == 0:
                optimizer.zero_grad()
            outputs, labels = objective.transform_outputs(self.model(*inputs), labels)
            loss = objective(outputs, labels, weights)
            (loss / together).backward()
            self.passes += 1
            if self.passes % together == 0:
                optimizer.step()
        if not self.output_sizes:
            self.output_sizes = sizes_of(outputs)
        return outputs, labels, loss

    def _look(
        self,
        inputs: list[torch.Tensor],
        labels: list[torch.Tensor],
        weights: torch.Tensor | None,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        outputs, labels = self.objective.transform_outputs(self.model(*inputs), labels)
        return outputs, labels, self.objective(outputs, labels, weights)

    def _save(self, folder: str | None, epoch: int) -> bytes:
        """The state after an epoch; also writes it to the store."""
        state = dumps(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "ranks": hvd.size(),
                "epoch": epoch,
            }
        )
        if folder is not None:
            path = os.path.join(folder, self.plan.store.checkpoint_filename)
            with open(f"{path}.new", "wb") as file:
                file.write(state)
            os.replace(f"{path}.new", path)
            self.plan.store.sync(folder)
        return state


def _device(use_gpu: bool) -> torch.device:
    """The GPU that Spark has given to this rank, or else that of its local rank; or the CPU."""
    if use_gpu and torch.cuda.is_available():
        by_place = os.environ.get("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "0") not in ("", "0")
        given = [] if by_place else get_available_devices()
        index = int(given[0]) if given else hvd.local_rank() % torch.cuda.device_count()
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


@contextlib.contextmanager
def _event_log(folder: str | None, name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Writes losses for TensorBoard, if it is installed and runs are kept."""
    if folder is None or importlib.util.find_spec("tensorboard") is None:
        yield lambda told: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(os.path.join(folder, name)) as writer:

        def log(told: dict[str, Any]) -> None:
            for stage in ("train", "validation"):
                if stage in told:
                    writer.add_scalar(f"{stage}/loss", told[stage]["loss"], told["epoch"])
            writer.flush()

        yield log


def _line(told: dict[str, Any], epochs: int) -> str:
    val = f", validation {told['validation']['loss']:.6g}" if "validation" in told else ""
    return f"epoch {told['epoch'] + 1}/{epochs}: loss {told['train']['loss']:.6g}{val}"


def _name(metric: Any) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))
