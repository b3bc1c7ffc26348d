"""Rank programs: overlapping process sets at once, from several threads of every rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import numpy as np
import torch
from rank_programs import torch_forms as forms
from rank_programs.torch_cases import EXACT, mine, rank_input, same

import hvdtune.torch as hvd

MEMBERS = ((0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3), (0, 1, 2), (1, 2, 3), (3,))


def start(members: tuple[tuple[int, ...], ...]) -> list[hvd.ProcessSet]:
    """The process sets, the global one first."""
    sets = [hvd.ProcessSet(ranks) for ranks in members]
    hvd.init(process_sets=sets)
    return [hvd.global_process_set, *sets]


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run all at once; raise what the first of them raised, when all have ended."""
    problems: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def shapes(seed: int) -> Iterator[tuple[int, ...]]:
    """The same on all ranks."""
    random = np.random.default_rng(seed)
    while True:
        rows = int(random.choice([0, 1, 5, 12, 60, 5000], p=[0.05, 0.2, 0.3, 0.2, 0.2, 0.05]))
        yield (rows, int(random.integers(1, 4)))


def check_form(form: str, process_set: hvd.ProcessSet, shape: tuple[int, ...], name: str) -> None:
    """One operation of the set, against what its members' inputs say."""
    ranks = process_set.ranks
    assert ranks
    inputs = [rank_input(rank, torch.float64, shape) for rank in ranks]
    place, size = ranks.index(hvd.rank()), len(ranks)
    family = forms.family(form).removeprefix("grouped_")
    arguments: dict[str, object] = {"name": name, "process_set": process_set}
    if family == "allreduce":
        expected = torch.stack(inputs).sum(0)
    elif family == "reducescatter":
        parts = torch.stack(inputs).sum(0).tensor_split(size)
        expected = parts[place]
    elif family == "allgather":
        expected = torch.cat(inputs)
    elif family == "broadcast":
        arguments["root_rank"] = ranks[-1]
        expected = inputs[-1]
    else:
        arguments["splits"] = [shape[0] // size] * size
        rows = slice(place * (shape[0] // size), (place + 1) * (shape[0] // size))
        expected = torch.cat([values[rows] for values in inputs])
    result = forms.complete(form, [mine(torch.float64, shape)], **arguments)
    got = result[0] if form in forms.GROUPED or family == "alltoall" else result
    same(got.to(EXACT), expected, (form, ranks, shape))


def run(directory: str, rounds: int) -> int:
    """Everything that goes on at once; returns the number of threads that this rank ran."""
    sets = start(MEMBERS)
    threads = every_set_in_threads(sets, rounds)
    hvd.barrier()
    absent_member(sets, directory)
    hvd.shutdown()
    return threads


def every_set_in_threads(sets: list[hvd.ProcessSet], rounds: int) -> int:
    """Two threads a set; their names are their own, and one of the two leaves them out."""
    counts = []

    def work(number: int, process_set: hvd.ProcessSet, thread: int) -> None:
        random = np.random.default_rng([number, thread])
        of_this_shape = shapes(1000 * number + thread)
        for _ in range(rounds):
            form = forms.FORMS[int(random.integers(len(forms.FORMS)))]
            name = None if thread == 0 else f"thread.{thread}.{random.integers(3)}"
            check_form(form, process_set, next(of_this_shape), name)
            counts.append(1)
        if thread == 0:
            hvd.barrier(process_set=process_set)

    works = [
        lambda n=number, s=process_set, t=thread: work(n, s, t)
        for number, process_set in enumerate(sets)
        if process_set.included()
        for thread in range(2)
    ]
    in_threads(works)
    return len(counts) // rounds


def wait_for(file: Path) -> None:
    while not file.exists():
        sleep(0.001)


def absent_member(sets: list[hvd.ProcessSet], directory: str) -> None:
    """A rank that submits nothing holds up its own sets only: all others' go on meanwhile.

    It comes when a file says that they have gone on.
    """
    for absent in range(hvd.size()):
        went_on = Path(directory) / f"{absent}.went-on"
        waiting = [s for s in sets if s.included() and absent in (s.ranks or [])]
        going_on = [s for s in sets if s.included() and absent not in (s.ranks or [])]
        if hvd.rank() == absent:
            for rank in range(hvd.size()):
                if rank != absent:
                    wait_for(went_on.with_suffix(f".{rank}"))
        # Handles that nobody waits for yet, and a thread for every set that waits in the engine.
        held_up = [
            hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="held up", process_set=s)
            for s in waiting
        ]
        results: dict[int | None, torch.Tensor] = {}

        def hold_up(
            process_set: hvd.ProcessSet, results: dict[int | None, torch.Tensor] = results
        ) -> None:
            results[process_set.process_set_id] = hvd.allreduce(
                torch.ones(2), op=hvd.Sum, name="thread", process_set=process_set
            )

        threads = [threading.Thread(target=hold_up, args=(s,)) for s in waiting]
        for thread in threads:
            thread.start()
        if hvd.rank() != absent:
            for round_number in range(30):
                for process_set in going_on:
                    form = forms.FORMS[round_number % len(forms.FORMS)]
                    check_form(form, process_set, (12, 2), "going on")
            assert not any(hvd.poll(handle) for handle in held_up)
            assert not results
            went_on.with_suffix(f".{hvd.rank()}").touch()
        for handle, process_set in zip(held_up, waiting, strict=True):
            total = float(process_set.size() or 0)
            same(hvd.synchronize(handle), torch.full((3,), total), process_set.ranks)
        for thread, process_set in zip(threads, waiting, strict=True):
            thread.join()
            total = torch.full((2,), float(process_set.size() or 0))
            same(results[process_set.process_set_id], total, process_set.ranks)
        hvd.barrier()


def stopped_member(directory: str) -> str:
    """The last rank is stopped by the test; sets without it go on, its own wait for it."""
    size = int(os.environ["HOROVOD_SIZE"])
    last = size - 1
    others = tuple(range(last))
    sets = start((others, (0, last)))
    hvd.barrier()
    print("ready", flush=True)
    stopped = Path(directory) / "stopped"
    if hvd.rank() != last:
        wait_for(stopped)
        handle = None
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, process_set=sets[2])
        for round_number in range(300):
            form = forms.FORMS[round_number % len(forms.FORMS)]
            check_form(form, sets[1], (12, 2), f"round.{round_number % 5}")
        assert handle is None or not hvd.poll(handle)
        print("went on", flush=True)
    else:
        wait_for(Path(directory) / "continued")
        handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, process_set=sets[2])
    if handle is not None:
        same(hvd.synchronize(handle), torch.full((2,), 2.0), "with the stopped rank")
    hvd.barrier()
    hvd.shutdown()
    return "together again"
