"""A training program for PyTorch Ignite, written as its documentation shows, in a file of its own.

With `joined` it joins the job that it is started in (`hvdtune run -np 2 python ignite_training.py
joined`), as it does with `initialized` and `context`, by other functions; with `parallel` or
`spawn` Ignite starts 2 ranks itself, with `serial` one process does the work of both. Of several
such words it does one after the other. What the ranks found goes into `found.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, Loss
from ignite.utils import convert_tensor

ROWS, FEATURES, CLASSES, BATCH, EPOCHS = 64, 8, 3, 16, 3


def data() -> torch.utils.data.TensorDataset:
    """The same samples in every process, with classes that can be learnt."""
    made = torch.Generator().manual_seed(7)
    inputs = torch.randn(ROWS, FEATURES, generator=made)
    weights = torch.randn(FEATURES, CLASSES, generator=made)
    return torch.utils.data.TensorDataset(inputs, (inputs @ weights).argmax(1))


def collectives() -> dict:
    """What every collective of idist gives on this rank."""
    rank, size = idist.get_rank(), idist.get_world_size()
    mine = torch.tensor([rank + 1.0, 10.0 * (rank + 1)])
    found = {
        "sum": idist.all_reduce(mine.clone()).tolist(),
        "number": idist.all_reduce(rank + 1),
        "average": idist.all_reduce(mine.clone(), op="AVERAGE").tolist(),
        "min": idist.all_reduce(mine.clone(), op="MIN").tolist(),
        "max": idist.all_reduce(mine.clone(), op="MAX").tolist(),
        "product": idist.all_reduce(mine.clone(), op="PRODUCT").tolist(),
        "gathered": idist.all_gather(mine).tolist(),
        "numbers": idist.all_gather(rank),
        "words": idist.all_gather("x" * (rank + 1)),
        "objects": idist.all_gather([rank, {"rank": rank}]),
        "broadcast": idist.broadcast(mine, src=size - 1).tolist(),
        "text": idist.broadcast(f"from {rank}", src=0),
        "safe": idist.broadcast(mine if rank == 0 else None, src=0, safe_mode=True).tolist(),
    }
    idist.barrier()
    if size > 1:
        alone = idist.new_group([1])
        found["group"] = idist.all_gather(mine, group=alone).tolist()
    return found


def train() -> dict:
    """Train and evaluate; the weights that resulted and the metrics over all ranks."""
    torch.manual_seed(idist.get_rank())  # auto_model makes the ranks' weights equal
    model = idist.auto_model(torch.nn.Linear(FEATURES, CLASSES))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.5))
    samples = data()
    # In order: the same batches in one process as the two ranks' together.
    loader = idist.auto_dataloader(
        samples,
        batch_size=BATCH,
        sampler=None if idist.get_world_size() == 1 else _in_order(samples),
    )
    loss = torch.nn.CrossEntropyLoss()

    def step(engine: Engine, batch: tuple) -> float:
        inputs, classes = (convert_tensor(part, idist.device()) for part in batch)
        optimizer.zero_grad()
        error = loss(model(inputs), classes)
        error.backward()
        optimizer.step()
        return error.item()

    def look(engine: Engine, batch: tuple) -> tuple:
        with torch.no_grad():
            return model(batch[0]), batch[1]

    trainer, evaluator = Engine(step), Engine(look)
    Accuracy().attach(evaluator, "accuracy")
    Loss(loss).attach(evaluator, "loss")
    seen = []
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED,
        lambda: seen.append(dict(evaluator.run(loader).metrics)),
    )
    trainer.run(loader, max_epochs=EPOCHS)
    return {
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "metrics": seen,
        "batches": len(loader),
        "optimizer": type(optimizer).__name__,
    }


def rows_seen() -> int:
    """How many samples the ranks get together from a data loader as Ignite makes it."""
    loader = idist.auto_dataloader(data(), batch_size=BATCH, shuffle=True)
    mine = sum(len(classes) for _, classes in loader)
    assert mine == ROWS // idist.get_world_size()
    return idist.all_reduce(mine) if idist.backend() else mine


@idist.one_rank_only()
def told_once() -> str:
    """Only rank 0 gets an answer."""
    return f"by rank {idist.get_rank()}"


def _in_order(samples: torch.utils.data.Dataset) -> torch.utils.data.Sampler:
    return torch.utils.data.DistributedSampler(
        samples, idist.get_world_size(), idist.get_rank(), shuffle=False
    )


FOUND = Path("found.json")


def work(local_rank: int) -> None:
    """One rank's part; rank 0 adds what all ranks found to what was found before."""
    backend, model_name = idist.backend(), idist.model_name()
    trained = train()
    found = {
        "local_rank": local_rank,
        "rank": idist.get_rank(),
        "backend": backend,
        "model": model_name,
        "device": str(idist.device()),
        "collectives": collectives() if backend else None,
        "rows": rows_seen(),
        "told": told_once(),
        **trained,
    }
    every = idist.all_gather(found) if backend else [found]
    if idist.get_rank() == 0:
        before = json.loads(FOUND.read_text()) if FOUND.exists() else []
        FOUND.write_text(json.dumps([*before, every]))


def main(how: str) -> None:
    """Run `work` in the way asked for."""
    if how == "spawn":
        idist.spawn("horovod", work, args=(), nproc_per_node=2)
    elif how == "parallel":
        with idist.Parallel(backend="horovod", nproc_per_node=2) as parallel:
            parallel.run(work)
    elif how == "serial":
        work(0)
    elif how == "initialized":
        idist.initialize("horovod")
        work(idist.get_local_rank())
        idist.finalize()
    elif how == "context":
        import horovod.torch as hvd

        hvd.init()
        idist.sync()
        work(idist.get_local_rank())
    else:
        with idist.Parallel(backend="horovod") as parallel:
            parallel.run(work)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        main(word)
