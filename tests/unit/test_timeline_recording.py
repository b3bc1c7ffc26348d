"""From a capture's files to a Recording: whole, cut off, damaged, hostile, of several hosts."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    block,
    capture_lines,
    event,
    recording,
    simulate,
    write_capture,
    write_lines,
)

from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record import capture_file
from hvdtune.timeline.record.capture_file import Budget, is_capture, read_capture_file
from hvdtune.timeline.record.clock import LARGEST_BOUND_NS, TIMES, UnalignedError, clock_of
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import FORMAT, STREAMS, TENSOR, ClockReading, Identity
from hvdtune.timeline.record.load import read_files, read_recording, siblings

SMALL = Job(ranks=3, steps=6, counters=True, cycles=True)
SHIFTED = replace(
    SMALL, steps=200, offset=(0.0, 11.56, -3.0), drift=(0.0, 40e-6, -25e-6), bound=30e-6
)


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all((one[stream] == other[stream]).all() for stream in STREAMS)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write_capture(SMALL, tmp_path)
    read, truth = read_recording(path), recording(SMALL)
    assert read.problems == []
    assert list(read.ranks) == [0, 1, 2]
    assert read.size == 3
    for rank, one in truth.ranks.items():
        assert read.ranks[rank].identity == one.identity
        assert read.ranks[rank].names == one.names
        assert read.ranks[rank].texts == one.texts
        assert read.ranks[rank].complete
        # One host, one clock: not a nanosecond is lost to the readings' noise.
        assert equal(read.ranks[rank].streams, one.streams)
    assert read.clock_bound_ns == 40_000


def test_shifted_clocks_agree_within_the_bound(tmp_path: Path) -> None:
    read, truth = read_recording(write_capture(SHIFTED, tmp_path)), recording(SHIFTED)
    # The bound of a reading is 30 us: for two ranks together it must not be more than the tenfold.
    assert 30_000 <= read.clock_bound_ns <= 600_000
    for rank in (1, 2):
        for stream, columns in TIMES.items():
            ours, theirs = read.ranks[rank].streams[stream], truth.ranks[rank].streams[stream]
            for column in columns:
                apart = np.abs(ours[column] - theirs[column])
                assert (apart <= read.clock_bound_ns).all(), (rank, stream, column)
                # An unknown time stays unknown.
                assert ((ours[column] == 0) == (theirs[column] == 0)).all()


def test_rank_0_alone_with_what_it_saw_of_the_others(tmp_path: Path) -> None:
    job = replace(SMALL, all_ranks=False)
    read = read_recording(write_capture(job, tmp_path))
    assert read.problems == []
    assert list(read.ranks) == [0]
    assert len(read.ranks[0].ready) == job.ranks * job.steps * len(job.tensors)


def test_compressed_files(tmp_path: Path) -> None:
    path = write_capture(SMALL, tmp_path, "t.json.gz")
    assert {one.name for one in tmp_path.iterdir()} == {
        *("t.json.gz", "t.rank1.json.gz", "t.rank2.json.gz"),
    }
    assert equal(read_recording(path).ranks[2].streams, recording(SMALL).ranks[2].streams)


def test_what_will_be_compressed_is_read_by_that_name_while_the_job_runs(tmp_path: Path) -> None:
    write_capture(SMALL, tmp_path, "t.json")
    read = read_recording(tmp_path / "t.json.gz")
    assert equal(read.ranks[2].streams, recording(SMALL).ranks[2].streams)
    assert not read.problems
    with pytest.raises(FileNotFoundError, match=r"u\.json\.gz"):
        read_recording(tmp_path / "u.json.gz")


def test_siblings_by_rank(tmp_path: Path) -> None:
    for name in ("t.json", "t.rank10.json", "t.rank2.json", "t.rank.json", "t.rank2.json.part"):
        (tmp_path / name).touch()
    names = [one.name for one in siblings(tmp_path / "t.json")]
    assert names == ["t.rank2.json", "t.rank10.json"]


def test_another_jobs_leftover_is_left_out(tmp_path: Path) -> None:
    path = write_capture(replace(SMALL, ranks=2), tmp_path)
    write_lines(
        tmp_path / "t.rank2.json",
        capture_lines(replace(SMALL, id="older"), 2, simulate(SMALL)),
    )
    read = read_recording(path)
    assert list(read.ranks) == [0, 1]
    (problem,) = read.problems
    assert "t.rank2.json was left out" in problem
    assert "'older'" in problem


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    path = write_capture(SMALL, tmp_path)
    (tmp_path / "t.rank1.json").unlink()
    (problem,) = read_recording(path).problems
    assert problem.startswith("Of 3 ranks, these are missing: 1.")


def test_any_rank_alone(tmp_path: Path) -> None:
    write_capture(replace(SMALL, bound=0.0), tmp_path)
    read = read_recording(tmp_path / "t.rank2.json")
    assert list(read.ranks) == [2]
    assert equal(read.ranks[2].streams, recording(SMALL).ranks[2].streams)


def test_cut_off_anywhere(tmp_path: Path) -> None:
    path = write_capture(replace(SMALL, ranks=1), tmp_path, records=8)
    data = path.read_bytes()
    whole = read_recording(path).ranks[0]
    seed = random.Random(1)
    for at in [len(data) - 1, len(data) - 2, *(seed.randrange(2000, len(data)) for _ in range(60))]:
        path.write_bytes(data[:at])
        one = read_recording(path).ranks[0]
        assert len(one.tensors) <= len(whole.tensors)
        assert (one.tensors == whole.tensors[: len(one.tensors)]).all()
        assert (one.batches == whole.batches[: len(one.batches)]).all()
    path.write_bytes(data[: len(data) // 2])
    problems = read_recording(path).problems
    assert any("is cut off" in problem for problem in problems)
    assert any("has no end" in problem for problem in problems)


def test_cut_off_and_damaged_gzip(tmp_path: Path) -> None:
    job = replace(SMALL, ranks=1, steps=400)
    path = write_capture(job, tmp_path, "t.json.gz")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    read = read_recording(path)
    assert any("cut off" in problem for problem in read.problems)
    assert len(read.ranks[0].tensors) > 0
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes(50) + data[middle + 50 :])
    try:
        problems = read_recording(path).problems
    except TimelineError as error:
        problems = [str(error)]
    assert any("damaged" in problem for problem in problems)


def test_damaged_lines_and_blocks(tmp_path: Path) -> None:
    job = replace(SMALL, ranks=1)
    lines = capture_lines(job, 0, simulate(job), records=8)
    tensors = [i for i, line in enumerate(lines) if '"tensors"' in line]
    lines[tensors[0]] = lines[tensors[0]].replace('"data": "', '"data": "AAA')
    lines[tensors[1]] = lines[tensors[1]][:-30]
    lines.append(event("hvdtune_block", 0, {"stream": "dreams", "count": 1, "data": "AAAA"}))
    lines.append(event("hvdtune_block", 0, {"stream": "tensors", "count": "many", "data": 5}))
    lines.append(event("hvdtune_names", 0, {"names": [[1 << 40, "a", 0, "b", "c", 1], [1]]}))
    path = tmp_path / "t.json"
    write_lines(path, lines)
    read = read_recording(path)
    text = "\n".join(read.problems)
    assert "Rank 0: 2 damaged blocks of tensors were left out." in text
    assert "1 damaged lines were skipped" in text
    assert "blocks of 'dreams', which this version does not know," in text
    assert "events that cannot be understood" in text
    assert len(read.ranks[0].tensors) == len(recording(job).ranks[0].tensors) - 2 * 8


def test_references_to_what_is_lost(tmp_path: Path) -> None:
    job = replace(SMALL, ranks=1)
    lines = capture_lines(job, 0, simulate(job))
    lines = [line for line in lines if "hvdtune_names" not in line and "hvdtune_texts" not in line]
    table = np.zeros(1, TENSOR)
    table["name"], table["submitted"] = 4_000_000_000, -5
    lines.append(block("tensors", 0, table))
    write_lines(tmp_path / "t.json", lines)
    one = read_recording(tmp_path / "t.json").ranks[0]
    assert {one.names[i].name for i in one.tensors["name"]} == {"(name lost)"}
    assert "1 impossible records of tensors were left out." in one.problems
    assert (one.marks["text"] == 0xFFFFFFFF).all()


def test_a_newer_format_is_refused_with_a_sentence(tmp_path: Path) -> None:
    job = replace(SMALL, ranks=1)
    lines = capture_lines(job, 0, simulate(job))
    lines[0] = lines[0].replace(f'"format": {FORMAT}', '"format": 7')
    write_lines(tmp_path / "t.json", lines)
    with pytest.raises(
        TimelineError, match=f"format 7, and this version reads formats up to {FORMAT}"
    ):
        read_recording(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"[\n]", "is not a recording made by hvdtune"),
        (b'[{"ph":"B","name":"A","ts":1,"pid":1}]', "is not a recording made by hvdtune"),
        (b"\x00" * 100_000, "is not a recording made by hvdtune"),
        (b'{"hvdtune_' * 10_000, "is not a recording made by hvdtune"),
        (b'["hvdtune_",' + b"[" * 100_000, "is not a recording made by hvdtune"),
    ],
)
def test_what_is_no_recording(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert not is_capture(path)
    with pytest.raises(TimelineError, match=said):
        read_recording(path)


def test_a_file_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_file, "MOST_UNPACKED", (200, 1 << 16))
    path = write_capture(replace(SMALL, ranks=1), tmp_path, "t.json.gz")
    unpacked = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(unpacked[:-2] + b" " * (20 << 20), 9))
    with pytest.raises(TimelineError, match="unpacks to more than 200 times its size"):
        read_recording(path)


def test_more_records_than_memory_is_for(tmp_path: Path) -> None:
    path = write_capture(SMALL, tmp_path)
    with pytest.raises(TimelineError, match=r"has more than .* of records"):
        read_capture_file(path, Budget(10_000))


def test_lines_too_long_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_file, "LONGEST_LINE", 3000)
    path = write_capture(replace(SMALL, ranks=1), tmp_path, records=8)
    lines = path.read_text().split("\n")
    lines.insert(4, " " * 10_000 + ",")
    path.write_text("\n".join(lines))
    read = read_recording(path)
    assert any("1 damaged lines were skipped" in problem for problem in read.problems)
    assert len(read.ranks[0].tensors) == len(recording(SMALL).ranks[0].tensors)


def test_written_anew_by_another_program(tmp_path: Path) -> None:
    """On a single line, with the keys in another order."""
    path = write_capture(SMALL, tmp_path)
    events = json.loads(path.read_text())
    path.write_text(json.dumps(events, sort_keys=True))
    assert equal(read_recording(path).ranks[0].streams, recording(SMALL).ranks[0].streams)


# ---- clocks -------------------------------------------------------------------------------------


def identity(rank: int, host: str, started_ns: int = 10**12) -> Identity:
    return Identity(
        *("job", rank, 4, 0, host, 100 + rank, "1"),
        started_wall_us=10**15,
        started_ns=started_ns,
    )


def test_a_rank_without_readings_on_another_host_is_refused(tmp_path: Path) -> None:
    job = replace(SMALL, local_size=2)  # rank 2 is on host1
    path = write_capture(job, tmp_path)
    other = tmp_path / "t.rank2.json"
    lines = [line for line in other.read_text().split("\n") if "hvdtune_clock" not in line]
    other.write_text("\n".join(lines))
    read = read_recording(path)
    assert list(read.ranks) == [0, 1]
    sentence = (
        "ank 2 (host host1) cannot be aligned: it has no reading of rank 0's clock, and rank 0 is "
        "on host host0"
    )
    assert any(sentence in problem for problem in read.problems)
    with pytest.raises(UnalignedError, match=r"rank 2 \(host host1\) cannot be aligned"):
        read_files([path, tmp_path / "t.rank1.json", other])


def test_processes_of_one_host_share_a_clock_if_the_time_of_day_says_so() -> None:
    near, far = identity(1, "a", 10**12 + 1000), identity(1, "a", 3 * 10**12)
    assert clock_of(near, [], identity(0, "a")).bound_ns == 0
    with pytest.raises(UnalignedError, match="although it is on the same host"):
        clock_of(far, [], identity(0, "a"))


def test_readings_that_say_too_little_are_refused() -> None:
    vague = [ClockReading(10**9, 5, LARGEST_BOUND_NS + 1)]
    with pytest.raises(UnalignedError, match="known only to ± 50 ms"):
        clock_of(identity(1, "b"), vague, identity(0, "a"))
    jumping = [ClockReading(s * 10**9, (s > 5) * 10**9, 1000) for s in range(10)]
    with pytest.raises(UnalignedError, match=r"its clock jumped by .* s against rank 0's"):
        clock_of(identity(1, "b"), jumping, identity(0, "a"))


def test_the_best_readings_make_the_line_and_the_others_its_bound() -> None:
    readings = [ClockReading(s * 10**8, 1000, 2000) for s in range(100)]
    readings += [ClockReading(s * 10**8 + 50, 1000 + 40_000, 50_000) for s in range(100)]
    clock = clock_of(identity(1, "b"), readings, identity(0, "a"))
    assert clock.bound_ns == 2000
    assert (
        clock.to_rank0(np.array([0, 5 * 10**8, 10**12])) == [0, 5 * 10**8 + 1000, 10**12 + 1000]
    ).all()
    # A reading that contradicts them widens the bound by what it contradicts.
    readings.append(ClockReading(3 * 10**8 + 70, 1000 + 90_000, 10_000))
    assert clock_of(identity(1, "b"), readings, identity(0, "a")).bound_ns == 2000 + 80_000


def test_beyond_the_readings_the_bound_grows() -> None:
    one = clock_of(identity(1, "b"), [ClockReading(10**9, 500, 1000)], identity(0, "a"))
    assert one.bound_over(10**9, 10**9) == 1000
    assert one.bound_over(0, 11 * 10**9) == 1000 + 2_000_000  # 200 us a second
    readings = [ClockReading(s * 10**9, s * 5000, 1000) for s in range(101)]
    steady = clock_of(identity(1, "b"), readings, identity(0, "a"))
    assert steady.bound_over(0, 100 * 10**9) == 1000
    assert steady.bound_over(0, 150 * 10**9) == 2000
    assert steady.to_rank0(np.array([150 * 10**9])) == 150 * 10**9 + 750_000


# ---- fuzz ---------------------------------------------------------------------------------------


def mutated(data: bytes, seed: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(seed.randrange(1, 12)):
        at = seed.randrange(len(out))
        what = seed.randrange(6)
        if what == 0:
            out[at] = seed.randrange(256)
        elif what == 1:
            del out[at : at + seed.randrange(200)]
        elif what == 2:
            out[at:at] = out[at : at + seed.randrange(500)]
        elif what == 3:
            out[at:at] = seed.choice([b"[", b"{", b'"', b"\\", b"\n", b"\xff", b"-", b"1e999"])
        elif what == 4:
            out[at : at + 1] = str(seed.choice([-1, 0, 2**31, 2**63, 2**64, 10**400])).encode()
        else:
            out[at : at + 8] = b"null"
    return bytes(out)


@pytest.mark.parametrize("packed", [False, True])
def test_no_input_makes_the_reader_fail_otherwise_than_by_a_sentence(
    packed: bool, tmp_path: Path
) -> None:
    job = replace(SMALL, ranks=2, steps=2, offset=(0, 1.0))
    write_capture(job, tmp_path, records=16)
    path = tmp_path / "t.json"
    data = path.read_bytes()
    seed = random.Random(20)
    read, refused = 0, []
    for _ in range(400):
        content = mutated(gzip.compress(data, 1) if packed else data, seed)
        path.write_bytes(content)
        try:
            result = read_recording(path)
        except TimelineError as error:
            refused.append(str(error))
            continue
        read += 1
        for one in result.ranks.values():
            assert set(one.streams) == set(STREAMS)
            assert (one.tensors["name"] < max(1, len(one.names))).all()
    assert all(refused)
    assert read > 100 or packed


def rotated_lines(job: Job, rank: int, gone: str) -> list[str]:
    """A rank's file whose first block of a stream (or of none) was dropped."""
    lines = capture_lines(job, rank, simulate(job), records=16)
    if gone:
        lines.remove(next(line for line in lines if f'"stream": "{gone}"' in line))
    return [*lines[:-1], event("hvdtune_rotated", rank, {"blocks": 5}), lines[-1]]


@pytest.mark.parametrize("gone", ["batches", "tensors", ""])
def test_what_is_left_of_a_rotated_file_begins_with_a_whole_batch(
    tmp_path: Path, gone: str
) -> None:
    whole, path = recording(SMALL), tmp_path / "t.json"
    for rank in range(SMALL.ranks):
        file = path if rank == 0 else tmp_path / f"t.rank{rank}.json"
        write_lines(file, rotated_lines(SMALL, rank, gone))
    read = read_recording(path)
    for rank, one in read.ranks.items():
        before = whole.ranks[rank]
        batches, tensors = one.batches, one.tensors
        assert 0 < len(batches) <= len(before.batches)
        assert (batches == before.batches[-len(batches) :]).all()
        assert batches["tensors"].sum() == len(tensors)
        assert (
            tensors["batch"].tolist() == np.repeat(batches["serial"], batches["tensors"]).tolist()
        )
        assert (len(batches) < len(before.batches)) == bool(gone)
        [problem] = one.problems
        assert "below HVDTUNE_TIMELINE_MAX_MB" in problem
        assert ("right after it were left" in problem) == bool(gone)
    problems = analyse(read).quality.problems
    assert sum("its oldest part was dropped" in problem for problem in problems) >= 1


def test_a_rotated_file_without_a_whole_batch_is_read(tmp_path: Path) -> None:
    job = replace(SMALL, ranks=1)
    for stream in ("batches", "tensors"):
        lines = [
            line
            for line in rotated_lines(job, 0, "")
            if "hvdtune_block" not in line or f'"stream": "{stream}"' in line
        ]
        write_lines(tmp_path / "t.json", lines)
        [one] = read_recording(tmp_path / "t.json").ranks.values()
        assert len(one.tensors) == 0
        assert (len(one.batches) > 0) == (stream == "batches")
