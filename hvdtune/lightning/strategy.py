"""The strategy: how Lightning's Trainer trains over hvdtune's ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

import hvdtune.torch as hvd
from hvdtune.lightning.environment import HvdtuneEnvironment
from hvdtune.lightning.gradients import GradientAverager
from hvdtune.lightning.layers import SyncBatchNormLayers
from hvdtune.lightning.metrics import connect_metrics
from hvdtune.lightning.package import pl
from hvdtune.torch.phases import step_ended

T = TypeVar("T")

_REDUCTIONS = {
    "mean": hvd.Average,
    "avg": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}
# Where torch's schedulers keep the rates that they begin with, and CyclicLR the upper ones.
_SCHEDULER_RATES = ("base_lrs", "max_lrs")


class HvdtuneStrategy(pl.strategies.ParallelStrategy):
    """Data-parallel training over the processes that a launcher has started.

    Every process runs the same script with ``devices=1`` and takes its share of the data. At the
    start, weights and optimizer state become rank 0's; gradients are averaged while the backward
    pass runs.

    accelerator, checkpoint_io, precision_plugin: as for Lightning's own strategies.
    compression: how gradients are sent, for example ``hvdtune.torch.Compression.fp16``.
    sparse_as_dense: reduce sparse gradients (of ``Embedding(sparse=True)``) as dense ones.
    scale_lr: multiply the learning rates of optimizers, and those that schedulers begin with, by
        the number of ranks, as Lightning's Horovod strategy did.
    """

    strategy_name = "hvdtune"
    # Lightning's own attributes.
    parallel_devices: Any
    model: Any
    _layer_sync: Any

    def __init__(
        self,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        *,
        compression: Any = hvd.Compression.none,
        sparse_as_dense: bool = False,
        scale_lr: bool = False,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            cluster_environment=HvdtuneEnvironment(),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._scale_lr = scale_lr
        self._averager: GradientAverager | None = None
        self._reduces_in_backward = True
        self._started_job = False
        self._failed = False

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the names ``hvdtune`` and ``horovod`` with Lightning."""
        for name, options in (("hvdtune", {}), ("horovod", {"scale_lr": True})):
            if name not in strategy_registry:
                strategy_registry.register(name, cls, description=cls.__doc__, **options)

    # ---- the job ----

    def set_world_ranks(self) -> None:
        """Take this process's place in the job. The Trainer's constructor calls this.

        Raises ValueError for several devices per process and for devices other than the CPU.
        """
        if self.cluster_environment.join_job():
            self._started_job = True
        pl.utilities.rank_zero_only.rank = self.global_rank
        devices = self.parallel_devices or [torch.device("cpu")]
        if devices[0].type != "cpu":
            raise ValueError(
                f"HvdtuneStrategy cannot train on {devices[0]}: in this version it "
                "trains on the CPU. Use Trainer(accelerator='cpu')."
            )
        if len(devices) not in (1, hvd.local_size()):
            raise ValueError(
                f"Trainer(devices={len(devices)}) with HvdtuneStrategy: every process has one "
                f"device, and {hvd.local_size()} process(es) run on this host. Use devices=1 and "
                "start as many processes as you want, for example with: hvdtune run -np "
                f"{len(devices)} python train.py"
            )
        self.parallel_devices = devices[:1]

    def setup_environment(self) -> None:
        """Connect to the job again if a failure has ended it."""
        self.set_world_ranks()
        self._failed = False
        super().setup_environment()

    @property
    def root_device(self) -> torch.device:
        """The CPU."""
        return self.parallel_devices[0]

    @property
    def is_distributed(self) -> bool:
        """Whether the data must be divided among processes."""
        return bool(self.world_size > 1)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """The arguments of the DistributedSampler that Lightning puts into data loaders."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def on_exception(self, exception: BaseException) -> None:
        """Remember that ``teardown`` follows a failure."""
        self._failed = True

    def teardown(self) -> None:
        """Undo ``setup``. After a failure, end the job so that no rank waits for this one.

        If the program itself has called ``init``, it must also end the job. After success the job
        continues, for the next ``fit`` or ``test``, until the process ends.
        """
        if self._failed and self._started_job:
            hvd.shutdown()
        self._averager = None
        if isinstance(self._layer_sync, SyncBatchNormLayers):
            self._layer_sync.revert(self.lightning_module)
        super().teardown()

    # ---- the model and its optimizers ----

    def setup(self, trainer: Any) -> None:
        """Prepare the model and the optimizers; parameters and buffers become rank 0's."""
        fitting = trainer.state.fn == "fit"
        if fitting and self._layer_sync is not None and self.is_distributed:
            if isinstance(self._layer_sync, pl.plugins.TorchSyncBatchNorm):
                self._layer_sync = SyncBatchNormLayers()
            self.model = self._layer_sync.apply(self.model)
        connect_metrics(self.lightning_module)
        super().setup(trainer)
        self._broadcast_model()
        if fitting:
            self.scale_learning_rates(self.world_size)
            if self.is_distributed:
                self._averager = GradientAverager(
                    self._param_groups(),
                    {p: name for name, p in self.lightning_module.named_parameters()},
                    compression=self._compression,
                    sparse_as_dense=self._sparse_as_dense,
                )

    def model_to_device(self) -> None:
        """Move the model to the CPU."""
        self.model.to(self.root_device)

    def on_train_start(self) -> None:
        """Make weights and optimizer state rank 0's, after a checkpoint has been loaded."""
        super().on_train_start()
        self._broadcast_model()
        for optimizer in self.optimizers:
            # LBFGS keeps a history of vectors, which cannot be broadcast. It is empty at the
            # start, and every rank has loaded the same one from a checkpoint.
            if not isinstance(optimizer, torch.optim.LBFGS):
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    def _broadcast_model(self) -> None:
        state = self.lightning_module.state_dict()
        # Modules may keep other things in their state (get_extra_state).
        tensors = {name: item for name, item in state.items() if isinstance(item, torch.Tensor)}
        hvd.broadcast_parameters(tensors, root_rank=0)

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply the rates of optimizers and schedulers, if ``scale_lr``; else do nothing."""
        if not self._scale_lr:
            return
        for group in self._param_groups():
            if "lr" in group:
                group["lr"] = group["lr"] * factor
        for config in self.lr_scheduler_configs:
            self._scale_schedule(config.scheduler, factor)

    def _scale_schedule(self, scheduler: Any, factor: float) -> None:
        """Scale the rates that a scheduler, or one that it combines with others, has noted."""
        for name in _SCHEDULER_RATES:
            if hasattr(scheduler, name):
                rates = [rate * factor for rate in getattr(scheduler, name)]
                setattr(scheduler, name, rates)
        for part in getattr(scheduler, "_schedulers", ()):
            self._scale_schedule(part, factor)

    def _param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    # ---- gradients ----

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Inside, gradients add up on each rank; the next backward pass outside reduces them."""
        self._reduces_in_backward = False
        try:
            yield
        finally:
            self._reduces_in_backward = True

    def backward(
        self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Run the backward pass and reduce the gradients before any hook can see them."""
        plugin, module = self.precision_plugin, self.lightning_module
        self.pre_backward(closure_loss)
        closure_loss = plugin.pre_backward(closure_loss, module)
        if self._reduces_in_backward and self._averager is not None:
            with self._averager.reducing(self._param_groups()):
                plugin.backward(closure_loss, module, optimizer, *args, **kwargs)
        else:
            plugin.backward(closure_loss, module, optimizer, *args, **kwargs)
        closure_loss = plugin.post_backward(closure_loss, module)
        self.post_backward(closure_loss)
        return closure_loss

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Take a step with reduced gradients, however they were computed."""

        def evaluate() -> Any:
            loss = closure()
            if self._averager is not None and self._averager.has_unreduced:
                # Needed after ``loss.backward()`` without ``manual_backward``, or for a step inside
                # ``toggle_model(sync_grad=False)``: else the ranks' weights would diverge.
                self._averager.synchronize(self._param_groups())
            if isinstance(optimizer, torch.optim.LBFGS) and loss is not None:
                # The loss decides how often LBFGS evaluates: it must be the same everywhere.
                loss = self.reduce(loss)
            return loss

        output = super().optimizer_step(optimizer, evaluate, model, **kwargs)
        step_ended(optimizer)
        return output

    # ---- collectives for Lightning and the user's module ----

    def _is_alone(self) -> bool:
        """Whether no other rank participates: one process, or a run that ends with an error.

        After an error, callbacks may save a checkpoint while the other ranks do something else.
        """
        trainer = getattr(self.lightning_module, "_trainer", None)
        return self.world_size == 1 or (
            trainer is not None and trainer.state.status == "interrupted"
        )

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """``tensor`` reduced over the ranks: mean, sum, min, max or product.

        Anything but a tensor is returned unchanged. Raises ValueError for another ``reduce_op``.
        """
        if not isinstance(tensor, torch.Tensor):
            return tensor
        # Lightning spells its default None; a torch ReduceOp prints as "RedOpType.SUM".
        name = "mean" if reduce_op is None else str(reduce_op).rpartition(".")[2].lower()
        if name not in _REDUCTIONS:
            raise ValueError(
                f"reduce_op={reduce_op!r} is not supported; accepted are {', '.join(_REDUCTIONS)}."
            )
        if self._is_alone():
            return tensor
        op = _REDUCTIONS[name]
        if op == hvd.Average and not tensor.is_floating_point():
            # An average of integers is cut off, and Lightning divides by that of its row counts.
            tensor = tensor.to(torch.get_default_dtype())
        return hvd.allreduce(tensor.detach().contiguous(), op=op, name=f"lightning.reduce.{name}")

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """The tensors of all ranks, all of one shape, stacked along a new first dimension.

        With ``sync_grads``, this rank's gradient is the sum over all ranks for its part. In one
        process, returns ``tensor`` itself.
        """
        if self._is_alone():
            return tensor
        if sync_grads:
            return _AllGather.apply(tensor)
        return _stacked(tensor.detach())

    def barrier(self, name: str | None = None) -> None:
        """Wait until all ranks have called this."""
        if not self._is_alone():
            hvd.barrier()

    def broadcast(self, obj: T, src: int = 0) -> T:
        """The object of rank ``src``."""
        if self._is_alone():
            return obj
        return hvd.broadcast_object(obj, root_rank=src, name="lightning.broadcast")


def _stacked(tensor: torch.Tensor) -> torch.Tensor:
    return hvd.allgather(tensor.contiguous().unsqueeze(0), name="lightning.all_gather")


class _AllGather(torch.autograd.Function):
    """Gathers; sums the gradients, as Lightning does. (``hvd.allgather`` averages them.)"""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _stacked(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = hvd.allreduce(
            gradient.contiguous(), op=hvd.Sum, name="lightning.all_gather.gradient"
        )
        return total[hvd.rank()]
