"""A process of kills.py: the same small training with hvdtune, torchrun or torchft.

It notes every finished step in a file of its own: time, world, number of processes in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

STEP_SECONDS = 0.005  # in addition to computing and communication
BATCH = 32


class Notes:
    """The steps that this process has finished."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.steps").open("a", buffering=1)

    def finished(self, world: str, size: int) -> None:
        """Note one."""
        self._file.write(json.dumps([time.monotonic(), world, size]) + "\n")
        time.sleep(STEP_SECONDS)


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """About 1 MB of parameters, equal on all ranks."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU()
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    """Of one batch of random numbers."""
    inputs = torch.randn(BATCH, 256)
    return (model(inputs) - inputs).square().mean()


def hvdtune(notes: Notes) -> None:
    """Every step is committed."""
    import hvdtune.torch as hvd

    hvd.init()
    model, plain = model_and_optimizer()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            state.step += 1
            notes.finished(os.environ["HVDTUNE_JOB_ID"], hvd.size())
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, step=0))


def torchrun(notes: Notes, folder: Path) -> None:
    """Rank 0 writes a checkpoint every step; all read it when they start."""
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model, optimizer = model_and_optimizer()
    checkpoint, written = folder / "checkpoint", folder / "checkpoint.new"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    while True:
        optimizer.zero_grad()
        loss_of(parallel).backward()
        optimizer.step()
        step += 1
        if rank == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, written)
            written.replace(checkpoint)
        notes.finished(os.environ["TORCHELASTIC_RESTART_COUNT"], size)


def torchft(notes: Notes) -> None:
    """The quorum decides whether a step counts; a newcomer gets its state from another process."""
    from datetime import timedelta

    import torchft as ft

    port = int(os.environ["MASTER_PORT"])
    store = torch.distributed.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    model, plain = model_and_optimizer()

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": plain.state_dict()}

    def load(saved: dict[str, Any]) -> None:
        model.load_state_dict(saved["model"])
        plain.load_state_dict(saved["optimizer"])

    manager = ft.Manager(
        pg=ft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"group_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timedelta(seconds=10),
    )
    optimizer = ft.Optimizer(manager, plain)
    while store:  # which must stay alive
        before = manager.current_step()
        optimizer.zero_grad()
        loss_of(model).backward()
        # With torch 2.13, its DistributedDataParallel ends the process if another one dies.
        for work in [manager.allreduce(one.grad) for one in model.parameters()]:
            work.wait()
        optimizer.step()
        if manager.current_step() > before:
            size = manager.num_participants()
            notes.finished(str(size), size)


def main() -> None:
    """Train until this process is ended; with flags, be torchft's lighthouse."""
    if sys.argv[1].startswith("--"):
        from torchft._torchft import lighthouse_main

        lighthouse_main()
    system, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    notes = Notes(folder)
    if system == "torchrun":
        torchrun(notes, folder)
    elif system == "torchft":
        torchft(notes)
    else:
        hvdtune(notes)


if __name__ == "__main__":
    main()
