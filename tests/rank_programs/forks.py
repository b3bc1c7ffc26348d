"""What forks of an initialised rank may ask, and what they are told."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import hvdtune as hvd

Answer = list[str]
PLAIN = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def in_fork(ask: Callable[[], Any]) -> str:
    """The answer of a forked child, which then ends as Python programs do."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = repr(ask())
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".replace(str(os.getpid()), "CHILD")
        os.write(write, answer.encode())
        sys.exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        answer = lines.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer.replace(str(os.getpid()), "PARENT")


def place(_: object = None) -> list[Any]:
    """All that a fork may read."""
    whole = hvd.global_process_set
    return [getattr(hvd, name)() for name in PLAIN] + [
        hvd.is_initialized(), hvd.is_homogeneous(), hvd.mpi_enabled(), hvd.gloo_enabled(),
        whole.rank(), whole.size(), whole.included(), whole.ranks,
    ]  # fmt: skip


def plain_reads() -> list[str]:
    """From a fork, a fork's fork, a pool, a thread of a fork: and the rank itself."""
    hvd.init()
    own = repr(place())
    answers = [in_fork(place), in_fork(lambda: eval(in_fork(place)))]

    def from_thread() -> Any:
        answer: list[Any] = []
        thread = threading.Thread(target=lambda: answer.append(place()))
        thread.start()
        thread.join()
        return answer[0]

    answers.append(in_fork(from_thread))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers += map(repr, pool.map(place, range(2)))
        pool.close()
        pool.join()
    hvd.barrier()
    return [own, *answers]


def refusals() -> dict[str, str]:
    """What a fork is told about everything that concerns other ranks."""
    hvd.init()
    tensor = np.ones(3, np.float32)
    handle = hvd.allreduce_async(tensor, name="in flight")
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: hvd.allreduce(tensor),
        "allreduce named": lambda: hvd.allreduce(tensor, name="a"),
        "allreduce_": lambda: hvd.allreduce_(tensor, name="a"),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([tensor]),
        "allgather": lambda: hvd.allgather(tensor),
        "broadcast_": lambda: hvd.broadcast_(tensor, 0, name="b"),
        "alltoall": lambda: hvd.alltoall(np.ones(4)),
        "reducescatter": lambda: hvd.reducescatter(tensor),
        "barrier": hvd.barrier,
        "join": hvd.join,
        "broadcast_object": lambda: hvd.broadcast_object(1),
        "allgather_object": lambda: hvd.allgather_object(1),
        "add_process_set": lambda: hvd.add_process_set([0]),
        "mark": lambda: hvd.mark("here"),
        "start_timeline": lambda: hvd.start_timeline("never.json"),
        "poll": lambda: hvd.poll(handle),
        "synchronize": lambda: hvd.synchronize(handle),
        "init": hvd.init,
    }
    answers = {name: in_fork(call) for name, call in calls.items()}
    assert hvd.synchronize(handle).tolist() == [1.0] * 3
    assert hvd.allgather(np.ones(1)).size == hvd.size()
    return answers


def shutdown_in_fork() -> list[str]:
    """A fork that shuts down forgets the job, and nobody else does."""
    hvd.init()
    answer = in_fork(lambda: (hvd.shutdown(), hvd.is_initialized()))
    after = in_fork(lambda: (hvd.shutdown(), hvd.rank()))
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
    return [answer, after]


def forks_during_operations(rounds: int) -> list[str]:
    """Children come and go while another thread drives the engine."""
    hvd.init()
    over = threading.Event()

    def reduce() -> None:
        while not hvd.allreduce(np.array([over.is_set()], np.int32), op=hvd.Min, name="over")[0]:
            hvd.allreduce(np.ones(100_000), name="large")

    thread = threading.Thread(target=reduce)
    thread.start()
    answers = [in_fork(lambda: (hvd.rank(), hvd.size())) for _ in range(rounds)]
    over.set()
    thread.join()
    return answers
