"""Strangers at the doors of a running job, and the way to these doors."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import suppress

CONNECTIONS = 1000
SILENT = 10  # of them stay open to the end and say nothing
PATIENCE = 0.01  # seconds that one waits for an answer
WORDS = (b"status", b"stacks", b"start_timeline", b"stop_timeline", b"GET /metrics HTTP/1.1", b"\0")

Connect = Callable[[], socket.socket]


def some_bytes(choice: random.Random) -> bytes:
    """Noise, or words that are known with noise behind them."""
    noise = choice.randbytes(choice.choice((0, 1, 7, 300, 20_000)))
    return noise if choice.random() < 0.5 else choice.choice(WORDS) + b" \xff" + noise


def disturb(
    connect: Connect,
    pause: Callable[[], None] = lambda: None,
    connections: int = CONNECTIONS,
    silent: int = SILENT,
) -> None:
    """Many comers, one after the other; some leave in the middle, `silent` of them never say
    anything. `pause` is called between two of them.
    """
    choice = random.Random(11)
    waiting = []
    for number in range(connections):
        pause()
        with suppress(OSError):
            comer = connect()
            if number % (connections // silent) == 0:
                waiting.append(comer)
                continue
            with comer, suppress(OSError):
                comer.settimeout(PATIENCE)
                comer.send(some_bytes(choice))
                if choice.random() < 0.3:
                    comer.recv(100)
    for comer in waiting:
        comer.close()


def to_the_socket(name: str) -> Connect:
    """The socket that `hvdtune top` asks, by its name in the abstract namespace."""

    def connect() -> socket.socket:
        comer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        comer.settimeout(PATIENCE)
        comer.connect("\0" + name)
        return comer

    return connect


def to_the_port(port: int) -> Connect:
    """The port that Prometheus asks, on this host."""
    return lambda: socket.create_connection(("127.0.0.1", port), 0.5)
