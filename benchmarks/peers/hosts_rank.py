"""One rank of a job over several hosts: `hosts_rank.py SYSTEM FOLDER SECONDS WORK...`.

SYSTEM is hvdtune or gloo (gloo_rank.py says what it needs), a WORK as in rank_loop. Writes
FOLDER/rank-N.json: for each work the seconds of its calls, and the number of bytes that the host
(all of its ranks together) sent over its interface in a call.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rank_loop

WARM_UP = 2
FEWEST, MOST = 3, 2000
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def measure(peer: rank_loop.Peer, call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """A work's calls, the same number on all ranks."""
    for _ in range(WARM_UP):
        call()
    began = time.monotonic()
    call()
    each = peer.slowest(time.monotonic() - began)
    calls = max(FEWEST, min(MOST, int(seconds / each)))
    sent = int(SENT.read_text())
    peer.slowest(0.0)  # begin together
    times = []
    for _ in range(calls):
        began = time.monotonic()
        call()
        times.append(time.monotonic() - began)
    peer.slowest(0.0)
    return {"times": times, "sent": (int(SENT.read_text()) - sent) / calls}


def main() -> None:
    system, folder, seconds, *works = sys.argv[1:]
    import torch

    torch.set_num_threads(1)
    if system == "hvdtune":
        from hvdtune_rank import Hvdtune as Chosen
    else:
        from gloo_rank import Gloo as Chosen  # type: ignore[assignment]
    peer = Chosen()
    found = {}
    for work in works:
        tensors, call = rank_loop.open_work(peer, work)
        rank_loop.check_sums(peer, tensors, call, work)
        found[work] = measure(peer, call, float(seconds))
    Path(folder, f"rank-{peer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
