"""Programs that spend time in operations other than gradients' allreduces, or in blocking ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planted.job import Job, pause
from planted.networks import MIB, Net, descend, fit, noise, played, start_torch
from planted.program import Programs
from planted.work import Work, perform

programs = Programs()

BROADCAST, OBJECTS = "broadcast in every step", "object operations in every step"
GATHER, BLOCKING = "allgather in every step", "blocking allreduce in every step"
SMALL = ("metrics one by one", "small tensors one by one")


@programs.faulty("object broadcast in each step", (OBJECTS, BROADCAST), framework="torch", ranks=4)
def _object(job: Job) -> None:
    start_torch(job)
    vocabulary = {"words": bytes(12_000_000)} if job.rank == 0 else None

    def send(_step: int) -> None:
        if job.fault:
            job.hvd.broadcast_object(vocabulary, root_rank=0, name="vocabulary")

    fit(job, played(), noise(), steps=60, before=send)


@programs.faulty("schedule broadcast in each step", BROADCAST)
def _schedule(job: Job) -> None:
    import numpy as np

    table = np.ones(4 * MIB, np.float32)

    def send(_step: int) -> None:
        if job.fault:
            job.hvd.broadcast(table, 0, name="schedule")

    descend(job, before=send)


@programs.faulty("metrics one by one", SMALL, framework="torch", ranks=4)
def _metrics(job: Job) -> None:
    torch = start_torch(job)

    def average(_step: int) -> None:
        if job.fault:
            for number in range(150):
                job.hvd.allreduce(torch.tensor(1.0 * number), name=f"metric{number}")
        else:
            job.hvd.allreduce(torch.arange(150.0), name="metrics")

    fit(job, played(), noise(), after=average)


@programs.faulty("scores one by one", SMALL)
def _scores(job: Job) -> None:
    import numpy as np

    def average(_step: int) -> None:
        if job.fault:
            for number in range(200):
                job.hvd.allreduce(np.ones(1, np.float32), name=f"score{number}")
        else:
            job.hvd.allreduce(np.ones(200, np.float32), name="scores")

    descend(job, after=average)


@programs.faulty("objects gathered in each step", OBJECTS, ranks=4)
def _gathered_objects(job: Job) -> None:
    predictions = {"ids": list(range(40_000)), "text": "x" * 500_000}

    def gather(step: int) -> None:
        if job.fault or step % 40 == 39:
            job.hvd.allgather_object(predictions, name="predictions")

    descend(job, after=gather)


@programs.faulty("embeddings gathered in each step", GATHER, ranks=4)
def _gathered(job: Job) -> None:
    import numpy as np

    embeddings = np.ones((4096, 256), np.float32)

    def gather(_step: int) -> None:
        if job.fault:
            job.hvd.allgather(embeddings, name="embeddings")

    descend(job, after=gather)


@programs.faulty("loss averaged in the middle", BLOCKING, framework="torch", ranks=4)
def _loss(job: Job) -> None:
    """Ranks that load long have short backward passes: only the average makes them wait."""
    start_torch(job)
    model = played(forward=0.001)

    def load(step: int) -> None:
        heavy = (step + job.rank) % 2
        pause(0.020 * heavy)
        model.pace[1] = 0.005 - 0.004 * heavy

    def average(_step: int, loss: Any) -> None:
        if job.fault:
            job.hvd.allreduce(loss.detach(), name="loss")

    fit(job, model, noise(), before=load, middle=average)


@programs.faulty(
    "large tensors of a process set", BLOCKING, ranks=4,
    environment={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, culprits=None,
)  # fmt: skip
def _process_set(job: Job) -> None:
    import numpy as np

    job.start()
    pair = job.hvd.add_process_set([0, 1])
    state = np.ones(4 * MIB, np.float32)

    def share(_step: int) -> None:
        if job.fault and pair.included():
            job.hvd.allreduce(state, name="expert", process_set=pair)

    descend(job, Net(), after=share)


@programs.faulty("gradients waited for one by one", "no overlap", framework="torch")
def _waited(job: Job) -> None:
    heavy = replace(Work(), size=8 * MIB, steps=60)
    perform(job, replace(heavy, one_by_one=True) if job.fault else heavy)
