"""One rank of the memory's measurement: FILE SIZE...; rank 0 writes the curve to FILE as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import hvdtune as hvd
from hvdtune.bench import memory
from hvdtune.bench.timing import Ranks


def main(path: str, sizes: list[int]) -> None:
    """Every rank of the job works at once: the job has one for each usable CPU."""
    hvd.init()
    ranks = Ranks(hvd)
    curve = memory.measure(hvd.rank(), hvd.size(), sizes, hvd.barrier, ranks.slowest)
    if hvd.rank() == 0:
        Path(path).write_text(json.dumps(asdict(curve)))
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]])
