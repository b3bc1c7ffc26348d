"""How much a thousand strangers at each of its sockets slow down a training job.

    python benchmarks/experiments/strangers.py [--np 2] [--rounds 5] [--seconds 10]

While ranks train, a separate process opens a thousand connections in --seconds, evenly spaced: to
the socket of `hvdtune top`, to the port of Prometheus, and, to measure the cost of the strangers
themselves on the same CPUs, to a port that belongs to no job. Prints the steps a second as a ratio
to those of an equally long time without strangers before; the median of all rounds.
"""

from __future__ import annotations

import argparse
import bisect
import multiprocessing
import socket
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

# Ranks are started in the same way as in the tests.
sys.path[0] = str(Path(__file__).resolve().parents[2] / "tests")

from rank_programs import timed_training  # noqa: E402
from support.jobs.ranks import start_ranks  # noqa: E402
from support.jobs.strangers import CONNECTIONS, Connect, disturb, to_the_port, to_the_socket  # noqa: E402

from hvdtune.launch.remote.rendezvous import free_port  # noqa: E402
from hvdtune.live import client  # noqa: E402

FLOATS = 65_536  # of a tensor
Window = tuple[float, float]


def main() -> int:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--seconds", type=float, default=10, help="of a turn (default: 10)")
    args = parser.parse_args()
    port = free_port("127.0.0.1")
    with tempfile.TemporaryDirectory() as folder, a_port_of_nobodys_job() as nobodys:
        stop = Path(folder) / "stop"
        env = {"HVDTUNE_METRICS_PORT": str(port)}
        with start_ranks(args.np, timed_training.train, str(stop), FLOATS, env=env) as ranks:
            ranks.wait_for_output(0, "running")
            [endpoint] = [one for one in client.endpoints() if one.pid == ranks.pid(0)]
            doors = {
                "a port of no job": to_the_port(nobodys.getsockname()[1]),
                "the socket hvdtune top asks": to_the_socket(endpoint.name),
                "the port Prometheus asks": to_the_port(port),
            }
            turns = [
                (name, quiet(args.seconds), disturbed(connect, args.seconds))
                for _ in range(args.rounds)
                for name, connect in doors.items()
            ]
            stop.touch()
            ends = ranks.wait(60).values[0]
    print(f"{args.np} ranks, {CONNECTIONS} strangers in {args.seconds:g} s, {args.rounds} rounds")
    print(f"{'strangers at':30} {'steps/s without':>16} {'with':>8} {'ratio':>7}")
    for name in doors:
        rates = [
            (rate(ends, before), rate(ends, beside)) for own, before, beside in turns if own == name
        ]
        without, with_them = (statistics.median(side) for side in zip(*rates, strict=True))
        ratio = statistics.median(beside / before for before, beside in rates)
        print(f"{name:30} {without:16.1f} {with_them:8.1f} {ratio:7.3f}")
    return 0


def quiet(seconds: float) -> Window:
    """The time of a turn without strangers."""
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic()


def disturbed(connect: Connect, seconds: float) -> Window:
    """The time of a turn with strangers, which connect from another process."""
    ready = multiprocessing.Event()
    others = multiprocessing.Process(target=come, args=(connect, seconds, ready))
    others.start()
    ready.wait()
    begin = time.monotonic()
    others.join()
    return begin, time.monotonic()


def come(connect: Connect, seconds: float, ready: Event) -> None:
    """Open all connections of a turn, evenly spaced."""
    ready.set()
    begin, come = time.monotonic(), 0

    def pause() -> None:
        nonlocal come
        time.sleep(max(0.0, begin + come * seconds / CONNECTIONS - time.monotonic()))
        come += 1

    disturb(connect, pause)


def a_port_of_nobodys_job() -> socket.socket:
    """A server that answers everyone with a word, on a thread of this process."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                with listener.accept()[0] as comer:
                    comer.settimeout(0.05)
                    comer.recv(1000)
                    comer.send(b"?")
            except TimeoutError:
                continue
            except OSError:
                if listener.fileno() < 0:
                    return

    threading.Thread(target=serve, daemon=True).start()
    return listener


def rate(ends: list[float], window: Window) -> float:
    """Steps a second in a window of time."""
    begin, end = window
    return (bisect.bisect(ends, end) - bisect.bisect(ends, begin)) / (end - begin)


if __name__ == "__main__":
    sys.exit(main())
