"""Programs without a fault: no rank is to blame, and there is nothing to cure."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from planted.job import Job, crunch, pause
from planted.networks import KIB, MIB, Net, convolutions, descend, fit, noise, played, start_torch
from planted.program import Programs

programs = Programs()

#: More ranks than CPUs compute: which of them waits for a CPU changes from step to step.
CROWDED = ("ranks take turns", "CPUs taken")
SMALL = Net(size=64 * KIB)


@programs.healthy("one rank", ranks=1)
def _alone(job: Job) -> None:
    descend(job, SMALL)


@programs.healthy("one rank, PyTorch", framework="torch", ranks=1)
def _alone_torch(job: Job) -> None:
    start_torch(job)
    fit(job, played(), noise())


@programs.healthy("two ranks")
def _two(job: Job) -> None:
    descend(job, SMALL)


@programs.healthy("four ranks, PyTorch", framework="torch", ranks=4)
def _four_torch(job: Job) -> None:
    start_torch(job)
    fit(job, played(width=64), noise(64))


@programs.healthy("eight ranks", ranks=8)
def _eight(job: Job) -> None:
    descend(job, Net(size=16 * KIB, forward=0.012, layer=0.008), steps=60)


@programs.healthy("a little jitter", ranks=4)
def _jitter(job: Job) -> None:
    descend(job, SMALL, before=lambda step: pause(0.001 * job.random.random()))


@programs.healthy("rare small delays", ranks=4)
def _delays(job: Job) -> None:
    def disturbed(_step: int) -> None:
        pause(0.004 * (job.random.random() < 0.05))

    descend(job, Net(size=64 * KIB, forward=0.02), before=disturbed)


@programs.healthy("real computing")
def _computing(job: Job) -> None:
    descend(
        job, Net(size=64 * KIB, forward=40, layer=12, update=1), compute=lambda x: crunch(int(x))
    )


@programs.healthy("real computing, PyTorch", framework="torch")
def _computing_torch(job: Job) -> None:
    torch = start_torch(job)
    model = convolutions(torch)
    fit(job, model, lambda step: torch.randn(64, 3, 24, 24))


@programs.healthy("four ranks that compute", ranks=4, allowed=CROWDED)
def _crowded(job: Job) -> None:
    descend(
        job, Net(size=64 * KIB, forward=20, layer=6, update=1), compute=lambda x: crunch(int(x))
    )


@programs.healthy("batch normalisation of all", framework="torch")
def _batch_norm(job: Job) -> None:
    torch = start_torch(job)
    model = torch.nn.Sequential(
        played(layers=6, width=64, forward=0.004, backward=0.008), job.hvd.SyncBatchNorm(64)
    )
    fit(job, model, lambda step: torch.randn(16, 64))


@programs.healthy("gradients accumulated", framework="torch")
def _accumulated(job: Job) -> None:
    torch = start_torch(job)
    model = played(width=64)
    optimizer = job.hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        named_parameters=model.named_parameters(), backward_passes_per_step=2,
    )  # fmt: skip
    job.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in job.steps(50, mark=False):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


@programs.healthy("loss told every 10 steps", framework="torch", ranks=4)
def _told(job: Job) -> None:
    start_torch(job)

    def tell(step: int, loss: Any) -> None:
        if step % 10 == 0:
            job.hvd.allreduce(loss.detach(), name="loss")

    fit(job, played(width=64), noise(64), middle=tell)


@programs.healthy("evaluation at the end")
def _evaluated(job: Job) -> None:
    descend(job, SMALL)
    crunch(1500)
    job.hvd.allreduce(_ones(1), name="accuracy")


@programs.healthy("one rank starts late", ranks=4)
def _starts_late(job: Job) -> None:
    descend(job, SMALL, before=lambda step: pause(2.0 * (step == 0 and job.rank == 2)))


@programs.healthy("first batch takes long", framework="torch")
def _first_batch(job: Job) -> None:
    start_torch(job)
    # Compiling and starting on the first batch take a different time on each rank.
    fit(
        job, played(width=64), noise(64),
        before=lambda step: pause((0.8 + job.rank) * (step == 1)),
    )  # fmt: skip


@programs.healthy("barrier in each step", ranks=4)
def _barrier(job: Job) -> None:
    descend(job, Net(size=64 * KIB, forward=0.02), after=lambda step: job.hvd.barrier())


@programs.healthy("weights broadcast at the start")
def _broadcast(job: Job) -> None:
    job.start()
    for number in range(8):
        job.hvd.broadcast(_ones(MIB), 0, name=f"weight{number}")
    descend(job, SMALL)


@programs.healthy("sparse embedding", framework="torch")
def _sparse(job: Job) -> None:
    torch = start_torch(job)
    table = torch.nn.Embedding(2000, 32, sparse=True)
    model = torch.nn.Sequential(table, played(layers=4, width=32, backward=0.006))
    fit(job, model, lambda step: torch.randint(0, 2000, (8, 4)))


@programs.healthy(
    "process sets used alike", ranks=4, environment={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
)
def _process_sets(job: Job) -> None:
    job.start()
    pairs = [job.hvd.add_process_set(pair) for pair in ([0, 1], [2, 3])]
    own = next(pair for pair in pairs if pair.included())
    state = _ones(16 * KIB)

    def share(_step: int) -> None:
        job.hvd.allreduce(state, name=f"expert{job.rank // 2}", process_set=own)

    descend(job, Net(size=64 * KIB, forward=0.015), after=share)


@programs.healthy("loader that thinks ahead")
def _ahead(job: Job) -> None:
    ready: queue.Queue[int] = queue.Queue(2)

    def load() -> None:
        for number in range(81):
            time.sleep(0.008)
            ready.put(number)

    threading.Thread(target=load, daemon=True).start()

    def take(_step: int) -> None:
        ready.get()

    descend(job, SMALL, before=take)


@programs.healthy("cycle time without effect", environment={"HOROVOD_CYCLE_TIME": "100"})
def _cycle(job: Job) -> None:
    descend(job, Net(size=4 * KIB, layers=8, layer=0.003))


@programs.healthy("two hosts", ranks=4, hosts=2)
def _hosts(job: Job) -> None:
    descend(job, Net(size=16 * KIB, forward=0.02))


def _ones(size: int) -> Any:
    import numpy as np

    return np.ones(max(1, size // 4), np.float32)
