"""Blocks of tensors that are packed in runs: read back as they were, and damage is noticed."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    capture_lines,
    event,
    recording,
    simulate,
    write_lines,
)

from hvdtune.timeline.record.layout import NONE, TENSOR
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.record.tensor_runs import NARROW, RUN, WIDE, unpack

ONE = Job(ranks=1, steps=6, counters=True, cycles=True)


def pack(tensors: np.ndarray) -> tuple[bytes, int]:
    """As native/observe/capture/tensor_runs.cc does, but for when it goes on with wide runs."""
    heads: list[list[int]] = []
    wide: list[int] = []
    narrow: list[int] = []
    before = (-2, -1, 0)
    for name, batch, submitted in tensors.tolist():
        later, stride = submitted - before[2], name - before[0]
        goes_on = batch == before[1] and stride in (0, 1)
        if goes_on and heads[-1][3] == 1:  # the second one decides
            heads[-1][4] = 2 if 0 <= later < 1 << 16 else 4
            heads[-1][5] = stride
        if goes_on and stride == heads[-1][5] and heads[-1][4] == 2 and 0 <= later < 1 << 16:
            narrow.append(later)
            heads[-1][3] += 1
        elif goes_on and stride == heads[-1][5] and heads[-1][4] == 4 and abs(later) < 1 << 31:
            wide.append(later)
            heads[-1][3] += 1
        else:
            heads.append([name, batch, submitted, 1, 2, 1, 0])
        before = (name, batch, submitted)
    packed = np.array([tuple(head) for head in heads], RUN).tobytes()
    return packed + np.array(wide, WIDE).tobytes() + np.array(narrow, NARROW).tobytes(), len(heads)


def some_tensors(seed: int, count: int) -> np.ndarray:
    generator = random.Random(seed)
    table = np.zeros(count, TENSOR)
    name, batch, submitted = 0, 1, 10**15
    for at in range(count):
        name = name + 1 if generator.random() < 0.8 else generator.randrange(40)
        batch += generator.random() < 0.1
        submitted += generator.randrange(-1000, 5000)
        submitted += generator.choice((0, 0, 0, 0, 0, 0, 0, 5 * 10**9))
        table[at] = NONE if generator.random() < 0.05 else name, batch, submitted
    return table


@pytest.mark.parametrize("seed", range(20))
def test_what_was_packed_comes_back(seed: int) -> None:
    tensors = some_tensors(seed, 1 + 50 * seed)
    data, runs = pack(tensors)
    back = unpack(data, len(tensors), runs)
    assert back is not None
    assert back.dtype == TENSOR
    np.testing.assert_array_equal(back, tensors)


def test_a_step_that_comes_again_takes_two_bytes_a_tensor() -> None:
    tensors = np.zeros(1000, TENSOR)
    tensors["name"] = np.arange(1000)
    tensors["submitted"] = 10**12 + 1100 * np.arange(1000)
    data, runs = pack(tensors)
    assert runs == 1
    assert len(data) == RUN.itemsize + 999 * 2


@pytest.mark.parametrize(
    ("count", "runs"),
    [(9, 3), (11, 3), (10, 0), (10, 11), (10, -1), (10, 4), (0, 0), (10, 1 << 60)],
)
def test_other_numbers_than_the_bytes_hold_are_refused(count: int, runs: int) -> None:
    heads = np.array([(0, 1, 5, 4, 2, 1, 0), (9, 1, 6, 3, 4, 1, 0), (0, 2, 7, 3, 2, 0, 0)], RUN)
    data = heads.tobytes() + np.zeros(2, WIDE).tobytes() + np.zeros(5, NARROW).tobytes()
    assert unpack(data, 10, 3) is not None
    assert unpack(data, count, runs) is None


@pytest.mark.parametrize("tensors", [0, 3, 5, 0xFFFFFFFF])
def test_runs_whose_lengths_do_not_add_up_are_refused(tensors: int) -> None:
    heads = np.array([(0, 1, 5, tensors, 2, 1, 0), (9, 1, 6, 6, 2, 1, 0)], RUN)
    assert unpack(heads.tobytes() + np.zeros(8, NARROW).tobytes(), 10, 2) is None


@pytest.mark.parametrize(("width", "stride"), [(1, 1), (3, 1), (8, 1), (2, 2), (4, 255)])
def test_runs_of_an_unknown_kind_are_refused(width: int, stride: int) -> None:
    heads = np.array([(0, 1, 5, 3, width, stride, 0)], RUN)
    assert unpack(heads.tobytes() + bytes(2 * width), 3, 1) is None


def test_runs_of_format_2_are_read() -> None:
    """All are wide there, and the names count on; what says so now was padding, zeros."""
    heads = np.array([(4, 1, 50, 3, 0, 0, 0), (9, 2, 60, 1, 0, 0, 0)], RUN)
    back = unpack(heads.tobytes() + np.array([7, -9], WIDE).tobytes(), 4, 2)
    assert back is not None
    assert back.tolist() == [(4, 1, 50), (5, 1, 57), (6, 1, 48), (9, 2, 60)]


def packed_lines(lines: list[str]) -> list[str]:
    """The same capture with its tensors packed, as far as that makes them smaller."""
    result = []
    for line in lines:
        args = json.loads(line)["args"]
        if args.get("stream") == "tensors":
            tensors = np.frombuffer(base64.b64decode(args["data"]), TENSOR)
            data, runs = pack(tensors)
            line = block(len(tensors), runs, data, first=args["first"])
        result.append(line)
    return result


def block(count: Any, runs: Any, data: bytes, **more: Any) -> str:
    content = {"stream": "tensors", "count": count, "runs": runs, **more}
    return event("hvdtune_block", 0, content | {"data": base64.b64encode(data).decode()})


def test_a_recording_with_packed_tensors_is_the_same_recording(tmp_path: Path) -> None:
    job = ONE
    path = tmp_path / "t.json"
    write_lines(path, packed_lines(capture_lines(job, 0, simulate(job))))
    read = read_recording(path)
    assert read.problems == []
    for stream, table in recording(job).ranks[0].streams.items():
        np.testing.assert_array_equal(read.ranks[0].streams[stream], table)


@pytest.mark.parametrize("seed", range(100))
def test_damaged_runs_are_said_or_mended(tmp_path: Path, seed: int) -> None:
    """Whatever a block of runs says: no exception, and every record that is kept can be."""
    generator = random.Random(seed)
    job = ONE
    lines = capture_lines(job, 0, simulate(job))
    path = tmp_path / "t.json"
    write_lines(path, lines)
    others = len(read_recording(path).ranks[0].tensors)
    data, runs = pack(some_tensors(seed, 100))
    damaged = bytearray(data)
    for _ in range(generator.randrange(1, 9)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    numbers = [100, runs, runs + 1, -1, 1 << 62, 1.5, "7", None, True, [3]]
    count, told = generator.choice((100, generator.choice(numbers))), generator.choice(numbers)
    cut = generator.choice((len(damaged), generator.randrange(len(damaged))))
    lines.insert(-1, block(count, told, bytes(damaged[:cut])))
    write_lines(path, lines)
    one = read_recording(path).ranks[0]
    assert one.problems or len(one.tensors) == others + 100
    assert (one.tensors["name"] < len(one.names)).all()
    assert ((one.tensors["submitted"] >= 0) & (one.tensors["submitted"] < 1 << 62)).all()
