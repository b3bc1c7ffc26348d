"""Reads captures in the simplest way that is right: what the tests of the recorder compare with.

A capture is read whole, of all ranks, whether its files were joined already or not.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvdtune.timeline.record.layout import MARK, STREAMS, TENSOR, Mark
from hvdtune.timeline.record.tensor_runs import RUN


@dataclass
class RankCapture:
    """What one rank recorded: arrays by stream, and the rest as it is in the file."""

    identity: dict[str, Any]
    names: dict[int, list[Any]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    streams: dict[str, np.ndarray] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    clock: list[dict[str, int]] = field(default_factory=list)
    sets: list[dict[str, Any]] = field(default_factory=list)
    rotated: int = 0
    ended: str | None = None

    def marks(self, kind: Mark) -> np.ndarray:
        """The marks of one kind."""
        marks = self.streams.get("marks", np.zeros(0, MARK))
        return marks[marks["kind"] == kind]

    def texts_of(self, kind: Mark) -> list[str]:
        """Their texts."""
        return [self.texts[int(text)] for text in self.marks(kind)["text"]]

    def tensor_names(self) -> list[str]:
        """The name of every tensor record, in order."""
        return [self.names[int(name)][1] for name in self.streams["tensors"]["name"]]


def files_of(path: Path) -> list[Path]:
    """The files of a recording: rank 0's, and what the others' are called."""
    return sorted({path, *path.parent.glob(f"{path.stem}.rank*{path.suffix}")})


def read_capture(path: Path) -> dict[int, RankCapture]:
    """All ranks of a recording, by rank; every file must be strict JSON, its identity first."""
    ranks: dict[int, RankCapture] = {}
    blocks: dict[tuple[int, str], list[np.ndarray]] = {}
    for file in files_of(path):
        events = json.loads(file.read_text(encoding="utf-8"))
        # A rank's file may have been joined and be there still: its process was not reaped yet.
        if file == path or events[0]["pid"] not in ranks:
            for event in events:
                _add(event, ranks, blocks)
    for (rank, stream), arrays in blocks.items():
        ranks[rank].streams[stream] = np.concatenate(arrays)
    for rank in ranks.values():
        for stream, dtype in STREAMS.items():
            rank.streams.setdefault(stream, np.zeros(0, dtype))
    return dict(sorted(ranks.items()))


def _add(
    event: dict[str, Any],
    ranks: dict[int, RankCapture],
    blocks: dict[tuple[int, str], list[np.ndarray]],
) -> None:
    kind, args = event.get("name", ""), event.get("args", {})
    if event["ph"] != "M" or not kind.startswith("hvdtune_"):
        return
    rank = event["pid"]
    if kind == "hvdtune_identity":
        assert rank not in ranks, f"rank {rank} is there twice"
        assert args["rank"] == rank
        ranks[rank] = RankCapture(args)
        return
    one = ranks[rank]
    if kind == "hvdtune_names":
        one.names.update({name[0]: name for name in args["names"]})
    elif kind == "hvdtune_texts":
        one.texts.update(dict(args["texts"]))
    elif kind == "hvdtune_clock":
        one.clock.append(args)
    elif kind == "hvdtune_set":
        one.sets.append(args)
    elif kind == "hvdtune_dropped":
        one.dropped = args
    elif kind == "hvdtune_rotated":
        one.rotated = args["blocks"]
    elif kind == "hvdtune_end":
        one.ended = args["reason"]
    elif kind == "hvdtune_block":
        data = base64.b64decode(args["data"])
        if "runs" in args:
            records = _tensors_of(data, args["runs"])
        else:
            records = np.frombuffer(data, STREAMS[args["stream"]])
        assert len(records) == args["count"]
        blocks.setdefault((rank, args["stream"]), []).append(records)


def _tensors_of(data: bytes, runs: int) -> np.ndarray:
    """What a block of runs holds, one tensor after the other."""
    heads, rest = np.frombuffer(data, RUN, runs), data[runs * RUN.itemsize :]
    in_wide = sum(tensors - 1 for *_, tensors, width, _, _ in heads.tolist() if width == 4)
    later = {
        4: iter(np.frombuffer(rest, "<i4", in_wide).tolist()),
        2: iter(np.frombuffer(rest[4 * in_wide :], "<u2").tolist()),
    }
    records = []
    for name, batch, submitted, tensors, width, stride, _ in heads.tolist():
        for place in range(tensors):
            submitted += next(later[width]) if place else 0
            records.append((name + stride * place, batch, submitted))
    assert [next(times, None) for times in later.values()] == [None, None]
    return np.array(records, TENSOR)
