"""One rank of a peer with Python: the counterpart of harness.h, call for call.

Arguments and results are those that harness.h describes. The warm-up, the number of calls and the
clock (CLOCK_MONOTONIC, which all processes of a machine share) are also the same.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

WARM_UP_SHARE = 0.15
FEWEST_CALLS = 2


class Peer(Protocol):
    """A system to measure: both kinds of call, and the way in which ranks agree on a number."""

    rank: int
    size: int

    def single(self, tensor: Any) -> Callable[[], Any]:
        """A blocking sum in place of one torch tensor."""

    def step(self, tensors: list[Any]) -> Callable[[], Any]:
        """A sum in place of every tensor of a training step."""

    def slowest(self, value: float) -> float:
        """The largest value of all ranks."""


def run(peer: Peer, arguments: Sequence[str]) -> None:
    """Measure the works named on the command line and write this rank's results."""
    folder, seconds, most = Path(arguments[0]), float(arguments[1]), int(arguments[2])
    with (folder / f"rank-{peer.rank}").open("wb") as results:
        for text in arguments[3:]:
            tensors, call = open_work(peer, text)
            check_sums(peer, tensors, call, text)
            _measure(peer, call, seconds, most).tofile(results)
            del tensors, call


def open_work(peer: Peer, text: str) -> tuple[list[Any], Callable[[], Any]]:
    import torch

    kind, _, value = text.partition(":")
    if kind == "size":
        tensors = [torch.zeros(int(value) // 4)]
        return tensors, peer.single(tensors[0])
    if kind != "set":
        sys.exit(f"not a work: {text}")
    tensors = [torch.zeros(int(line)) for line in Path(value).read_text().split()]
    return tensors, peer.step(tensors)


def check_sums(peer: Peer, tensors: list[Any], call: Callable[[], Any], text: str) -> None:
    """Sum rank + 1 over all ranks once; leave zeros, which stay zeros in any number of sums."""
    for tensor in tensors:
        tensor.fill_(peer.rank + 1)
    call()
    expected = peer.size * (peer.size + 1) / 2
    if not all(bool((tensor == expected).all()) for tensor in tensors):
        sys.exit(f"wrong sums: {text}")
    for tensor in tensors:
        tensor.zero_()


def _warm_up(peer: Peer, call: Callable[[], Any], seconds: float) -> float:
    """Batches that double until one is long enough; seconds of one call, on all ranks."""
    batch = 1
    while True:
        began = time.monotonic()
        for _ in range(batch):
            call()
        took = peer.slowest(time.monotonic() - began)
        if took >= WARM_UP_SHARE * seconds:
            return took / batch
        batch *= 2


def _measure(peer: Peer, call: Callable[[], Any], seconds: float, most: int) -> array[float]:
    each = _warm_up(peer, call, seconds)
    calls = max(FEWEST_CALLS, int(min(most, seconds / each)))
    clock = time.monotonic
    times = array("d", bytes(8 * (calls + 2)))
    times[0] = calls
    peer.slowest(0.0)  # begin together
    times[1] = clock()
    for index in range(2, calls + 2):
        call()
        times[index] = clock()
    return times
