"""Real jobs that record themselves: what every rank's records say, against what was submitted."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from rank_programs import capture, training
from support.jobs.ranks import hvdtune_command, run_ranks, run_under, start_ranks
from support.recordings.captures import RankCapture, files_of, read_capture
from support.tiers import EVERY, long_too

import hvdtune._native as _native
from hvdtune.timeline.analysis.analyse import analyse
from hvdtune.timeline.record.layout import DTYPES, FORMAT, KINDS, NONE, REASONS, Flag, Mark
from hvdtune.timeline.record.load import read_recording

LAYERS = [f"allreduce.{name}" for name in capture.NAMES]


def recorded(path: Path, **more: str) -> dict[str, str]:
    return {"HOROVOD_TIMELINE": str(path), **more}


def counts(rank: RankCapture) -> dict[str, int]:
    names = rank.tensor_names()
    return {name: names.count(name) for name in set(names)}


def submissions(rank: RankCapture, names: set[str]) -> np.ndarray:
    """When the tensors of these names were submitted, ascending."""
    wanted = [name in names for name in rank.tensor_names()]
    return np.sort(rank.streams["tensors"]["submitted"][wanted])


def check_consistency(rank: RankCapture) -> None:
    """What holds for every capture that lost nothing."""
    batches, tensors = rank.streams["batches"], rank.streams["tensors"]
    assert not any(rank.dropped.values())
    assert batches["tensors"].sum() == len(tensors)
    assert (np.diff(batches["serial"].astype(np.int64)) > 0).all()
    expected = np.repeat(batches["serial"] & 0xFFFFFFFF, batches["tensors"])
    assert np.array_equal(tensors["batch"], expected)
    sizes = np.array([rank.names[int(name)][5] for name in tensors["name"]], np.int64)
    ends = np.cumsum(batches["tensors"])
    sums = [sizes[end - n : end].sum() for end, n in zip(ends, batches["tensors"], strict=True)]
    assert batches["bytes"].tolist() == sums
    assert (batches["begin"] <= batches["end"]).all()
    assert (batches["waited_ns"] >= 0).all()
    assert (batches["waited_ns"] <= batches["end"] - batches["begin"]).all()
    packed = batches[batches["packed"] != 0]
    assert (packed["begin"] <= packed["packed"]).all()
    assert (packed["packed"] <= packed["unpacking"]).all()
    assert (packed["unpacking"] <= packed["end"]).all()
    begins = np.repeat(batches["begin"], batches["tensors"])
    assert (tensors["submitted"] <= begins).all()
    assert (batches["reason"] < len(REASONS)).all()
    waits = rank.streams["waits"]
    assert (waits["end"] - waits["begin"] > 1000).all()
    assert set(waits["name"].tolist()) <= {*rank.names, NONE}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_records_what_it_submitted(tmp_path: Path, size: int) -> None:
    path, steps = tmp_path / "t.json", 12
    result = run_ranks(size, capture.train, steps, env=recorded(path))
    ranks = read_capture(path)
    assert list(ranks) == [*range(size)]
    serials = [rank.streams["batches"]["serial"].tolist() for rank in ranks.values()]
    assert all(other == serials[0] for other in serials)
    for number, rank in ranks.items():
        check_consistency(rank)
        assert counts(rank) == {**dict.fromkeys(LAYERS, steps), "barrier.noname": 1}
        for index, layer in enumerate(LAYERS):
            [name] = [name for name in rank.names.values() if name[1] == layer]
            assert name[2:] == [0, "allreduce", "float32", 4 * (3 + index)]
        begin, end = result.values[number]
        submitted = submissions(rank, set(LAYERS))
        assert begin <= submitted.min()
        assert submitted.max() <= end
        assert rank.marks(Mark.STEP)["value"].tolist() == [*range(1, steps + 1)]
        assert rank.marks(Mark.WINDOW)["value"].tolist() == [1, 0]
        assert rank.ended == "the job ended"
    coordinator = ranks[0].streams["batches"]
    assert (coordinator["first_ready"] > 0).all()
    assert (coordinator["first_ready"] <= coordinator["scheduled"]).all()
    assert (coordinator["scheduled"] <= coordinator["begin"]).all()
    for number in range(1, size):
        assert not ranks[number].streams["batches"]["scheduled"].any()


def test_who_recorded_is_in_every_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    before = time.time()
    result = run_ranks(2, capture.train, 2, env=recorded(path, HOROVOD_CYCLE_TIME="2.5"))
    ranks = read_capture(path)
    assert len({rank.identity["job"] for rank in ranks.values()}) == 1
    for number, rank in ranks.items():
        who = rank.identity
        assert (who["rank"], who["size"], who["local_rank"]) == (number, 2, number)
        assert who["format"] == FORMAT
        assert who["host"] == os.uname().nodename
        assert before <= who["started_wall_us"] / 1e6 <= time.time()
        assert who["started_ns"] <= result.values[number][1]
        assert who["settings"]["HOROVOD_CYCLE_TIME"] == 2.5
        assert not any("SECRET" in key for key in who["settings"])
        assert who["local_size"] == 2
        assert 1 <= who["cpus"] <= len(os.sched_getaffinity(0))
        assert rank.clock == [{**rank.clock[0], "offset_ns": 0, "bound_ns": 0}]
        [settings] = rank.texts_of(Mark.SETTINGS)
        assert json.loads(settings)["cycle_time_ms"] == 2.5
    assert ranks[0].identity["pid"] != ranks[1].identity["pid"]


def test_numbers_mean_what_they_do_in_the_engine() -> None:
    """Joins and process sets, which no batch has, come behind the operations."""
    kinds = sorted(_native.OP_KINDS, key=lambda kind: _native.OP_KINDS[kind])
    assert [*KINDS, "join", "add_process_set", "remove_process_set"] == kinds
    assert {name: code for code, name in enumerate(DTYPES)} == _native.DTYPES


def test_every_kind_of_operation(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(3, capture.all_operations, env=recorded(path))
    ranks = read_capture(path)
    for number, rank in ranks.items():
        check_consistency(rank)
        names = {name[1]: name[2:] for name in rank.names.values()}
        assert names["allreduce.r"] == [0, "allreduce", "float64", 96]
        assert names["grouped_allreduce.many_1of2"] == [0, "allreduce", "float64", 96]
        assert names["grouped_allreduce.many_2of2"] == [0, "allreduce", "float32", 16]
        assert names["allgather.g"] == [0, "allgather", "int64", 16 * (number + 1)]
        assert names["broadcast.b"][1] == "broadcast"
        assert names["alltoall.a"] == [0, "alltoall", "float64", 6 * 3 * 8]
        assert names["reducescatter.s"][1] == "reducescatter"
        assert names["barrier.noname"] == [0, "barrier", "uint8", 0]
        assert names["allreduce.noname"] == [0, "allreduce", "float64", 96]
        assert ("allreduce.apart" in names) == (number > 0)
        kinds = {KINDS[kind] for kind in rank.streams["batches"]["kind"]}
        assert kinds == set(KINDS)
        assert {DTYPES[code] for code in rank.streams["batches"]["dtype"]} >= {"float64", "int64"}
    assert names["allreduce.apart"][0] == 1
    own = ranks[1].streams["batches"]
    [apart] = own["serial"][own["process_set"] == 1].tolist()
    assert ranks[0].sets == []
    assert ranks[1].sets == [{"process_set": 1, "batch": apart, "ranks": [1, 2]}]
    table = analyse(read_recording(path)).sizes
    assert set(table.loc[table["op"] == "allreduce", "ranks"]) == {2, 3}
    assert table["busbw_gbps"].notna().tolist() == (table["op"] != "barrier").tolist()


def test_a_joined_rank_takes_part_with_zeros(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, capture.uneven, 8, env=recorded(path))
    ranks = read_capture(path)
    for rank in ranks.values():
        check_consistency(rank)
        assert counts(rank)["allreduce.x"] == 8
    assert (ranks[0].streams["tensors"]["submitted"] > 0).all()
    assert (ranks[1].streams["tensors"]["submitted"] > 0).tolist() == [True] * 4 + [False] * 4


def test_a_refused_operation_is_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, capture.disagree, env=recorded(path))
    for rank in read_capture(path).values():
        check_consistency(rank)
        assert counts(rank) == {"allreduce.x": 2}
        [text] = rank.texts_of(Mark.ERROR)
        assert text.startswith("allreduce.x: ")
        assert rank.marks(Mark.ERROR)["value"].tolist() == [0]


def test_who_waited_for_whom(tmp_path: Path) -> None:
    """The rank that comes late does not wait; the others are blocked for as long as it is late."""
    path, steps, late, pause = tmp_path / "t.json", 5, 1, 0.05
    run_ranks(3, capture.late_rank, steps, late, pause, env=recorded(path))
    ranks = read_capture(path)
    blocked = {}
    for number, rank in ranks.items():
        waits = rank.streams["waits"]
        [name] = [number for number, name in rank.names.items() if name[1] == "allreduce.x"]
        own = waits[waits["name"] == name]
        blocked[number] = (own["end"] - own["begin"]).sum() / 1e9
    assert blocked[0] >= steps * pause * 0.9
    assert blocked[2] >= steps * pause * 0.9
    submitted = {number: submissions(rank, {"allreduce.x"}) for number, rank in ranks.items()}
    for number in (0, 2):
        assert (submitted[late] - submitted[number] > pause * 0.5e9).all()


def test_settings_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, capture.change_settings, env=recorded(path))
    ranks = read_capture(path)
    for rank in ranks.values():
        check_consistency(rank)
        assert rank.marks(Mark.SETTINGS)["value"].tolist() == [0, 1]
        first, second = (json.loads(text) for text in rank.texts_of(Mark.SETTINGS))
        assert (first["fusion_threshold"], second["fusion_threshold"]) == (128 << 20, 0)
        batches = rank.streams["batches"]
        assert set(batches["epoch"]) == {0, 1}
        assert (np.diff(batches["epoch"].astype(int)) >= 0).all()
        assert (batches["tensors"][batches["epoch"] == 1] == 1).all()
    epochs = [rank.streams["batches"]["epoch"].tolist() for rank in ranks.values()]
    assert epochs[0] == epochs[1]


def test_marks_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, capture.marks, env=recorded(path))
    for rank in read_capture(path).values():
        assert rank.texts_of(Mark.USER) == ['here, "there"\nand é']
        assert rank.marks(Mark.USER)["value"].tolist() == [7]


def test_cycles_are_marked_on_request(tmp_path: Path) -> None:
    for marked in (False, True):
        path = tmp_path / f"{marked}.json"
        run_ranks(
            2, capture.train, 3, env=recorded(path, HOROVOD_TIMELINE_MARK_CYCLES=str(int(marked)))
        )
        assert bool(len(read_capture(path)[0].marks(Mark.CYCLE))) == marked


def test_the_steps_of_an_optimizer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "t.json"
    run_ranks(2, capture.optimizer_steps, 4, env=recorded(path))
    for rank in read_capture(path).values():
        check_consistency(rank)
        assert rank.marks(Mark.STEP)["value"].tolist() == [1, 2, 3, 4]
        assert rank.identity["framework"].startswith("torch ")


def test_rank_0_alone_records_when_each_rank_was_ready(tmp_path: Path) -> None:
    path, steps = tmp_path / "t.json", 6
    run_ranks(3, capture.train, steps, env=recorded(path, HVDTUNE_TIMELINE_ALL_RANKS="0"))
    assert files_of(path) == [path]
    ranks = read_capture(path)
    assert list(ranks) == [0]
    check_consistency(ranks[0])
    ready = ranks[0].streams["ready"]
    names = [ranks[0].names[int(name)][1] for name in ready["name"]]
    for layer in LAYERS:
        own = ready[[name == layer for name in names]]
        assert sorted(own["rank"].tolist()) == sorted([*range(3)] * steps)
    barrier = ready[[name == "barrier.noname" for name in names]]
    assert sorted(barrier["rank"].tolist()) == [*range(3)]
    submitted = ranks[0].streams["tensors"]["submitted"]
    assert len(submitted) == len(LAYERS) * steps + 1
    assert sorted(submitted.tolist()) == sorted(ready["time"][ready["rank"] == 0].tolist())


def test_a_recording_that_begins_with_the_job_has_what_comes_first(tmp_path: Path) -> None:
    path, late = tmp_path / "t.json", 1
    run_ranks(3, capture.at_once, late, 0.3, env=recorded(path))
    for number, rank in read_capture(path).items():
        check_consistency(rank)
        assert rank.texts_of(Mark.USER) == ["at once"]
        assert counts(rank) == {"barrier.noname": 1}
        if number != late:
            assert len(rank.streams["waits"]) > 0


@pytest.mark.parametrize(("steps", "expected"), [("4:7", [3, 4, 5, 6]), ("9:", [8, 9, 10])])
def test_a_window_of_steps(tmp_path: Path, steps: str, expected: list[int]) -> None:
    """The mark of the step before is where the first one begins."""
    path = tmp_path / "t.json"
    run_ranks(3, capture.train, 10, env=recorded(path, HVDTUNE_TIMELINE_STEPS=steps))
    for rank in read_capture(path).values():
        check_consistency(rank)
        assert counts(rank) == dict.fromkeys(LAYERS, len(expected) - 1)
        assert rank.marks(Mark.STEP)["value"].tolist() == expected
        assert rank.marks(Mark.WINDOW)["value"].tolist() == [1, 0]


def test_a_window_that_never_came(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    result = run_ranks(2, capture.train, 3, env=recorded(path, HVDTUNE_TIMELINE_STEPS="100:120"))
    warnings = [line for line in result[0].stderr.splitlines() if "holds nothing" in line]
    assert len(warnings) == 1
    assert "its first step, 100, was not reached. 3 steps ended" in warnings[0]
    assert "holds nothing" not in result[1].stderr
    assert len(read_capture(path)[0].streams["batches"]) == 0


@pytest.mark.parametrize("caller", [-1, 0, 1])
def test_start_and_stop_on_all_ranks(tmp_path: Path, caller: int) -> None:
    environment = {"HOROVOD_TIMELINE": "DYNAMIC"}
    result = run_ranks(2, capture.start_and_stop, str(tmp_path), caller, env=environment)
    for name, steps in (("first", 3), ("second", 5)):
        ranks = read_capture(tmp_path / f"{name}.json")
        assert list(ranks) == [0, 1]
        serials = [rank.streams["batches"]["serial"].tolist() for rank in ranks.values()]
        assert serials[0] == serials[1], "not all ranks began or ended at the same place"
        for rank in ranks.values():
            check_consistency(rank)
            assert len(rank.streams["ready"]) == 0
            names = [name[1] for name in rank.names.values()]
            assert set(LAYERS) <= set(names)
            marks = rank.marks(Mark.STEP)["value"].tolist()
            assert marks[-steps:] == [*range(marks[0] + 1, marks[0] + steps + 1)]
    assert "first.json" in result.values[0][0]
    text = result[0].stderr + result[1].stderr
    assert text.count("/dev/null/t.json: Not a directory") == 1
    assert "Traceback" not in text


def test_names_are_those_of_the_own_recording(tmp_path: Path) -> None:
    run_ranks(2, capture.two_recordings, str(tmp_path), env={"HOROVOD_TIMELINE": "DYNAMIC"})
    for name, order in (("first", "xy"), ("second", "yx")):
        rank = read_capture(tmp_path / f"{name}.json")[0]
        expected = [f"allreduce.{tensor}" for tensor in order * 3]
        assert [one for one in rank.tensor_names() if one.startswith("allreduce.")] == expected
        long = [wait for wait in rank.streams["waits"] if wait["end"] - wait["begin"] > 20e6]
        assert [rank.names[int(wait["name"])][1] for wait in long] == expected


def test_the_next_steps(tmp_path: Path) -> None:
    run_ranks(2, capture.a_few_steps_later, str(tmp_path), env={"HOROVOD_TIMELINE": "DYNAMIC"})
    for rank in read_capture(tmp_path / "t.json").values():
        assert rank.marks(Mark.STEP)["value"].tolist() == [4, 5, 6, 7]
        assert counts(rank) == dict.fromkeys(LAYERS, 3)


@pytest.mark.parametrize("rank", [-1, 0, 1])
def test_a_signal_starts_and_stops(tmp_path: Path, rank: int) -> None:
    environment = {"HOROVOD_TIMELINE": "DYNAMIC", "HVDTUNE_TIMELINE_SIGNAL": "SIGUSR2"}
    run_ranks(2, capture.by_signal, str(tmp_path), rank, env=environment)
    for one in read_capture(tmp_path / "timeline.json").values():
        check_consistency(one)
        assert len(one.marks(Mark.STEP)) > 0
        assert one.ended == "stop_timeline() was called"


@pytest.mark.long
def test_what_finds_no_room_is_counted(tmp_path: Path) -> None:
    """Batches of 40 000 tensors; a buffer of 1 MiB holds 32 768."""
    path = tmp_path / "t.json"
    environment = recorded(path, HVDTUNE_TIMELINE_BUFFER_MB="1", HOROVOD_CYCLE_TIME="3000")
    result = run_ranks(2, capture.flood, 2, 4, 10_000, env=environment)
    for rank in read_capture(path).values():
        kept = len(rank.streams["tensors"])
        assert kept + rank.dropped["tensors"] == result.values[0]
        assert rank.dropped["tensors"] > 0
        assert rank.dropped["batches"] == 0
        assert rank.streams["batches"]["tensors"].sum() == result.values[0]


def test_the_file_can_be_kept_small(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    environment = recorded(path, HVDTUNE_TIMELINE_MAX_MB="1")
    with start_ranks(2, capture.train_until_killed, env=environment) as ranks:
        ranks.wait_for_output(0, "running")
        # Not parsed here: a file that is written to while it is read is not read at one moment.
        rotated = [False]
        while not all(rotated):
            time.sleep(0.2)
            files = files_of(path)
            assert max(file.stat().st_size for file in files) <= 1 << 20
            rotated = [b"hvdtune_rotated" in file.read_bytes() for file in files]
        ranks.signal(0, signal.SIGKILL)
        ranks.wait(60, check=False)
    for rank in read_capture(path).values():
        tensors, batches = rank.streams["tensors"], rank.streams["batches"]
        assert {rank.names[int(name)][1] for name in tensors["name"]} == set(LAYERS)
        assert batches["serial"][0] > 0
        assert len(batches) > 100
    for one in read_recording(path).ranks.values():
        assert one.batches["tensors"].sum() == len(one.tensors)
        assert any("its oldest part was dropped" in problem for problem in one.problems)


KILLS = 100 if EVERY else 8
KILLS_A_TEST = 4


@pytest.mark.parametrize("first", long_too(0, long=range(0, KILLS, KILLS_A_TEST)))
def test_the_files_are_whole_after_sigkill(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + KILLS_A_TEST):
        path = tmp_path / f"{seed}.json"
        chance = random.Random(seed)
        starts = seed % 3 == 0
        # Who is left alone while it starts waits no longer than it must.
        env = recorded(path) | ({"HOROVOD_START_TIMEOUT": "3"} if starts else {})
        with start_ranks(2, capture.train_until_killed, env=env) as ranks:
            if not starts:
                ranks.wait_for_output(0, "running")
            time.sleep(chance.uniform(0.0, 1.2))
            ranks.signal(chance.randrange(2), signal.SIGKILL)
            ranks.wait(60, check=False)
        if not path.exists():
            assert starts
            continue
        for rank in read_capture(path).values():
            names = {rank.names[int(name)][1] for name in rank.streams["tensors"]["name"]}
            assert names <= set(LAYERS)


@pytest.mark.long
def test_a_full_disk_ends_the_recording_and_not_the_job(tmp_path: Path) -> None:
    path, limit = tmp_path / "t.json", 2_000_000
    result = run_ranks(2, capture.train_on_a_full_disk, limit, env=recorded(path))
    assert result.values[0] == result.values[1] > 100
    text = result[0].stderr + result[1].stderr
    warnings = [line for line in text.splitlines() if "recording has ended" in line]
    # Whoever comes first says it; rank 0 says it of its own file in any case.
    of_rank0 = sum("[0]: cannot write" in line for line in warnings)
    assert 1 <= len(warnings) <= 1 + of_rank0 <= 2, text
    for warning in warnings:
        assert str(tmp_path) in warning
        assert os.strerror(errno.EFBIG) in warning
        assert "training goes on" in warning
    for rank in read_capture(path).values():
        assert rank.streams["batches"]["tensors"].sum() >= len(LAYERS)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_as_a_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    check_unwritable(tmp_path / "t.json")


def test_a_folder_that_cannot_be_written() -> None:
    check_unwritable(Path("/proc/t.json"))


def check_unwritable(path: Path) -> None:
    result = run_ranks(3, capture.train, 5, env=recorded(path))
    text = "".join(result[rank].stderr for rank in range(3))
    warnings = [line for line in text.splitlines() if str(path) in line]
    assert len(warnings) == 1, text
    assert "[0]" in warnings[0]
    assert "nothing is recorded, training goes on" in warnings[0]


def test_forked_children_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    result = run_ranks(2, capture.fork_while_recorded, str(tmp_path), env=recorded(path))
    assert result.values == (0, 0)
    for rank in read_capture(path).values():
        check_consistency(rank)
        assert counts(rank) == dict.fromkeys(LAYERS, 4)


def test_the_end_of_a_job_that_fails_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with start_ranks(2, training.train, "small", -1, env=recorded(path)) as ranks:
        ranks.wait_for_output(0, "running")
        ranks.signal(1, signal.SIGKILL)
        ranks.wait(60, check=False)
    rank = read_capture(path)[0]
    [mark] = rank.marks(Mark.ERROR)
    assert mark["value"] == 1
    assert "rank 1" in rank.texts[int(mark["text"])]
    assert rank.ended is not None


def test_a_reported_stall_is_marked(tmp_path: Path) -> None:
    path, stop_file = tmp_path / "t.json", tmp_path / "stop"
    environment = recorded(path, HOROVOD_STALL_CHECK_TIME_SECONDS="1")
    program = training.stay_away_from
    with start_ranks(2, program, "awaited", 1, str(stop_file), env=environment) as ranks:
        ranks.wait_for_output(0, "Missing ranks:", 60)
        stop_file.touch()
        ranks.wait(60)
    assert "Missing ranks:" in read_capture(path)[0].texts_of(Mark.STALL)[0]


def test_hvdtune_run_has_flags_for_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    flags = ["-np", "2", "--timeline-filename", str(path), "--timeline-steps", "2:3"]
    run_under(hvdtune_command("run", *flags, "--no-timeline-all-ranks"), capture.train, 3)
    ranks = read_capture(path)
    assert list(ranks) == [0]
    assert counts(ranks[0]) == dict.fromkeys(LAYERS, 1)


def test_in_place_batches_say_so(tmp_path: Path) -> None:
    """Otherwise tensors are packed."""
    path = tmp_path / "t.json"
    run_ranks(2, capture.train, 5, env=recorded(path))
    batches = read_capture(path)[0].streams["batches"]
    assert (batches["flags"] == Flag.OK).all()


PYNVML = """
from types import SimpleNamespace

class NVMLError(Exception):
    pass

NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES, NVML_SUCCESS = 0, 1, 0
readings = closed = 0

def nvmlInit():
    pass

def nvmlShutdown():
    global closed
    closed += 1

def nvmlDeviceGetCount():
    return 2

def nvmlDeviceGetHandleByIndex(index):
    return index

def nvmlDeviceGetUtilizationRates(gpu):
    global readings
    readings += gpu == 1
    return SimpleNamespace(gpu=25 * (1 + gpu))

def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(used=10**9)

def nvmlDeviceGetPowerUsage(gpu):
    if gpu == 1:
        raise NVMLError("Not Supported")
    return 250_000

def nvmlDeviceGetPcieThroughput(gpu, counter):
    return 7

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_VOLATILE_ECC = 1, 2, 0
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1

def nvmlDeviceGetClockInfo(gpu, clock):
    if clock == NVML_CLOCK_MEM:
        raise NVMLError("Not Supported")
    return 1980

def nvmlDeviceGetTotalEccErrors(gpu, kind, counter):
    raise NVMLError("Not Supported")

def nvmlDeviceGetCurrentClocksEventReasons(gpu):
    return 0x20 * gpu

nvmlClocksThrottleReasonSwPowerCap = 0x4
nvmlClocksThrottleReasonHwSlowdown = 0x8
nvmlClocksThrottleReasonSwThermalSlowdown = 0x20
nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80
"""


def test_rank_0_records_the_gpus_of_its_host(tmp_path: Path) -> None:
    """Whatever module is called pynvml is asked; viewers are shown its counters."""
    (tmp_path / "pynvml.py").write_text(PYNVML)
    environment = {"HOROVOD_TIMELINE": "DYNAMIC"}
    # Fresh: PyTorch has imported the real one, where there is one.
    result = run_ranks(2, capture.beside_gpus, str(tmp_path), 3, env=environment, fresh=True)
    assert result.values == (2, 0)
    for name in ("first", "second"):
        ranks = read_capture(tmp_path / f"{name}.json")
        readings = {
            number: [
                (rank.texts[int(one["counter"])], int(one["time"]), float(one["value"]))
                for one in rank.streams["counters"]
                if rank.texts[int(one["counter"])].startswith("GPU ")
            ]
            for number, rank in ranks.items()
        }
        assert readings[1] == []
        assert (np.diff([time for _, time, _ in readings[0]]) >= 0).all()
        values: dict[str, set[float]] = {}
        for counter, _, value in readings[0]:
            values.setdefault(counter, set()).add(value)
        assert values == {
            "GPU 0 utilization (ratio)": {0.25},
            "GPU 0 memory (bytes)": {1e9},
            "GPU 0 power (W)": {250.0},
            "GPU 0 PCIe received (bytes/s)": {7e3},
            "GPU 0 PCIe sent (bytes/s)": {7e3},
            "GPU 1 utilization (ratio)": {0.5},
            "GPU 1 memory (bytes)": {1e9},
            "GPU 1 PCIe received (bytes/s)": {7e3},
            "GPU 1 PCIe sent (bytes/s)": {7e3},
            **{f"GPU {gpu} SM clock (Hz)": {1.98e9} for gpu in (0, 1)},
            **{f"GPU {gpu} throttled by heat (0 or 1)": {gpu} for gpu in (0, 1)},
            **{
                f"GPU {gpu} throttled by {reason} (0 or 1)": {0}
                for gpu in (0, 1)
                for reason in ("power", "hardware")
            },
        }
        events = json.loads((tmp_path / f"{name}.json").read_text())
        shown = [one for one in events if one["ph"] == "C" and one["name"] == "GPU 0 power (W)"]
        assert len(shown) >= 3
        assert {one["pid"] for one in shown} == {0}
        assert {one["args"]["value"] for one in shown} == {250}


def test_the_same_file_again_is_no_other_jobs(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    env = {"HOROVOD_TIMELINE": "DYNAMIC"}
    result = run_ranks(2, capture.same_file_again, str(path), env=env)
    assert "in use" not in result[0].stderr + result[1].stderr
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]
    for rank in read_capture(path).values():
        assert rank.marks(Mark.STEP)["value"].tolist()[-3:] == [3, 4, 5]


def test_a_window_that_is_asked_for_too_late(tmp_path: Path) -> None:
    path = str(tmp_path / "t.json")
    result = run_ranks(2, capture.too_late, path, env={"HOROVOD_TIMELINE": "DYNAMIC"})
    assert "its first step, 3, was not reached. 1 steps ended" in result[0].stderr


def test_times_beyond_all_bounds_mean_for_ever() -> None:
    endless = {"HOROVOD_START_TIMEOUT": "1e10", "HOROVOD_STALL_CHECK_TIME_SECONDS": "1e10"}
    run_ranks(2, capture.train, 1, env=endless)
