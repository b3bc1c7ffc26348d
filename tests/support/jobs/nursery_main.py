"""A nursery: ``nursery_main.py SOCKET MODULE...`` imports and forks (see nursery.py).

There is one thread and one loop, which is over once pytest has hung up or ended. In a forked rank
the loop is over, too: the rank goes on behind it and ends where this file ends, as a script does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])  # tests/

from support.jobs import rank_runner  # noqa: E402
from support.jobs.nursery import MARK, NO_MARK  # noqa: E402


def address_of_the_mark() -> int:
    """Where in memory the mark's text is that others see in /proc/PID/environ."""
    begin = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    entry = f"{MARK}={NO_MARK}\0".encode()
    offset = (b"\0" + Path("/proc/self/environ").read_bytes()).index(b"\0" + entry)
    return begin + offset + len(MARK) + 1


def check_that_it_can_fork() -> None:
    """A thread would not be in the ranks, and what it holds locked would be so for ever."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1 or threading.active_count() > 1:
        names = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in threads]
        raise RuntimeError(f"it has threads, and must have none: {names}")


def serve(channel: socket.socket, parent: int) -> tuple[dict[str, Any], int] | None:
    """Answer until pytest is gone (None). In a rank: what it is to be, and whom it tells so."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(parent, select.POLLIN)
    ends: dict[int, int] = {}  # may be asked for again, by who was interrupted while it asked
    while True:
        if any(descriptor == parent for descriptor, _ in poll.poll()):
            return None
        data = channel.recv(1 << 20)
        if not data:
            return None
        number, what, about = pickle.loads(data)
        problem = ""
        if what == "end":
            if about not in ends:
                ends[about] = os.waitpid(about, 0)[1]
            answer = ends[about]
        else:
            read, write = os.pipe()
            check_that_it_can_fork()
            answer = os.fork()
            if answer == 0:
                os.close(read)
                return about, write
            os.close(write)
            ends.pop(answer, None)
            # Not before it is out of this session, and can be killed as the group it leads.
            if not os.read(read, 1):
                os.waitpid(answer, 0)
                problem = "a rank ended before it began"
            os.close(read)
        channel.send(pickle.dumps((number, answer, problem)))


def become_rank(order: dict[str, Any], mark: int) -> None:
    """Make this forked process look like a fresh one."""
    os.setsid()
    os.chdir(order["directory"])
    for descriptor, path in ((1, order["stdout"]), (2, order["stderr"])):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, descriptor)
        os.close(file)
    environment = order["environment"]
    os.environ.clear()
    os.environ.update(environment)
    if MARK in environment:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(mark)
            memory.write(environment[MARK].encode())
    time.tzset()
    tempfile.tempdir = None
    sys.orig_argv[:] = order["command"]
    sys.argv[:] = order["command"][1:]
    # Python's random numbers are others after a fork by themselves.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    parent = os.pidfd_open(os.getppid())
    os.set_inheritable(channel.fileno(), False)
    for module in sys.argv[2:]:
        # Where PyTorch is not installed, its tests skip.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    check_that_it_can_fork()
    mark = address_of_the_mark()
    # What is imported stays: looking through it for garbage would copy its pages in every rank.
    gc.collect()
    gc.freeze()
    channel.send(pickle.dumps((0, None, "")))
    order = serve(channel, parent)
    channel.close()
    os.close(parent)
    if order is not None:
        begin_as_rank(*order, mark)


def begin_as_rank(order: dict[str, Any], told: int, mark: int) -> None:
    become_rank(order, mark)
    os.write(told, b"\n")
    os.close(told)
    rank_runner.main(sys.argv[1])


if __name__ == "__main__":
    main()
