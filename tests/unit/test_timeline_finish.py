"""Joining the ranks' files: nothing is lost, whatever happens, however often it is done."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recordings import synthetic_capture
from support.recordings.synthetic_capture import (
    Job,
    capture_lines,
    recording,
    simulate,
    write_capture,
    write_lines,
)

from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import STREAMS, Identity
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.viewers import finish as finishing
from hvdtune.timeline.viewers import joined_file
from hvdtune.timeline.viewers.finish import finish, main

JOB = Job(ranks=3, steps=5, offset=(0, 2.5, -1.0), counters=True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_same(path: Path, before: Any) -> None:
    after = read_recording(path)
    assert list(after.ranks) == list(before.ranks)
    for rank, one in before.ranks.items():
        for stream in STREAMS:
            assert (after.ranks[rank].streams[stream] == one.streams[stream]).all()
        assert after.ranks[rank].names == one.names
        assert after.ranks[rank].identity == one.identity
        assert after.ranks[rank].clock == one.clock


def test_all_ranks_end_up_in_one_file(tmp_path: Path) -> None:
    path = write_capture(JOB, tmp_path)
    before = read_recording(path)
    os.chmod(path, 0o640)
    assert finish(path)
    assert list(files(tmp_path)) == ["t.json"]
    check_same(path, before)
    assert path.stat().st_mode & 0o777 == 0o640
    events = json.loads(path.read_text())
    assert events[0]["name"] == "hvdtune_identity"
    assert {event["ph"] for event in events} == set("MXbeistfC")
    # Once more changes nothing.
    content = path.read_bytes()
    assert not finish(path)
    assert path.read_bytes() == content


def test_compressed(tmp_path: Path) -> None:
    plain = write_capture(JOB, tmp_path)
    before = read_recording(plain)
    assert finish(f"{plain}.gz")
    assert list(files(tmp_path)) == ["t.json.gz"]
    check_same(tmp_path / "t.json.gz", before)
    json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert not finish(f"{plain}.gz")


def test_a_rank_that_was_killed_is_joined_too(tmp_path: Path) -> None:
    path = write_capture(JOB, tmp_path)
    other = tmp_path / "t.rank1.json"
    lines = other.read_text().split("\n")
    other.write_text("\n".join(lines[: len(lines) // 2]))
    os.utime(other, (1, 1))
    before = read_recording(path)
    assert finish(path, patience=0)
    assert list(files(tmp_path)) == ["t.json"]
    check_same(path, before)


def living(job: Job, rank: int) -> Identity:
    """As if this process had recorded it."""
    return replace(original(job, rank), host=socket.gethostname(), pid=os.getpid())


original = synthetic_capture.identity


def test_a_file_that_is_still_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic_capture, "identity", living)
    path = write_capture(JOB, tmp_path, records=4)
    other = tmp_path / "t.rank2.json"
    lines = capture_lines(JOB, 2, simulate(JOB), records=4)
    write_lines(other, lines[: len(lines) // 2])
    assert finish(path, patience=0)
    assert set(files(tmp_path)) == {"t.json", "t.rank2.json"}
    # The rest of it arrives, and is taken up.
    write_lines(other, lines)
    assert finish(path, patience=0)
    assert list(files(tmp_path)) == ["t.json"]
    read = read_recording(path)
    assert read.problems == []
    assert len(read.ranks[2].tensors) == len(recording(JOB).ranks[2].tensors)


def test_a_rank_that_is_a_zombie_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(
            synthetic_capture,
            "identity",
            lambda job, rank: replace(living(job, rank), pid=ended.pid),
        )
        path = write_capture(JOB, tmp_path, records=4)
        other = tmp_path / "t.rank2.json"
        lines = capture_lines(JOB, 2, simulate(JOB), records=4)
        write_lines(other, lines[: len(lines) // 2])
        assert finish(path, patience=0)
        assert set(files(tmp_path)) == {"t.json"}
    finally:
        ended.wait()


@pytest.mark.parametrize(("rank", "name"), [(0, "t.json"), (2, "t.rank2.json")])
def test_a_rank_that_still_records_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, name: str
) -> None:
    """Also on a host without rank 0: replacing the file would end the rank's recording."""
    monkeypatch.setattr(synthetic_capture, "identity", living)
    path = tmp_path / name
    write_lines(path, capture_lines(JOB, rank, simulate(JOB))[:-1])
    before = files(tmp_path)
    with pytest.raises(TimelineError, match=f"still being recorded, by process {os.getpid()}"):
        finish(path, patience=0)
    assert files(tmp_path) == before


@pytest.mark.parametrize(("host", "is_here"), [("127.0.0.1", True), ("192.0.2.1", False)])
def test_a_killed_rank_counts_as_ended_at_once_only_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, is_here: bool
) -> None:
    """Whatever the launcher calls this host, and if another one has the same name."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    named = {"host": host, "node": socket.gethostname(), "pid": ended.pid}
    monkeypatch.setattr(
        synthetic_capture, "identity", lambda job, rank: replace(original(job, rank), **named)
    )
    path = tmp_path / "t.json"
    write_lines(path, capture_lines(JOB, 0, simulate(JOB))[:-1])
    if is_here:
        assert finish(path, patience=0)
    else:
        with pytest.raises(TimelineError, match="still being recorded"):
            finish(path, patience=0)


def test_other_jobs_files_stay(tmp_path: Path) -> None:
    path = write_capture(replace(JOB, ranks=2), tmp_path)
    other = tmp_path / "t.rank2.json"
    write_lines(other, capture_lines(replace(JOB, id="older"), 2, simulate(JOB)))
    (tmp_path / "t.rank3.json").write_text("what is this")
    before = files(tmp_path)
    assert finish(path)
    after = files(tmp_path)
    assert set(after) == {"t.json", "t.rank2.json", "t.rank3.json"}
    assert after["t.rank2.json"] == before["t.rank2.json"]


@pytest.mark.parametrize("where", ["write", "fsync", "replace", "view"])
def test_failures_leave_everything_as_it_was(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_capture(JOB, tmp_path)
    before = files(tmp_path)

    def fail(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "write":
        monkeypatch.setattr(joined_file, "_pieces", fail)
    elif where == "view":
        monkeypatch.setattr(finishing, "view", fail)
    else:
        monkeypatch.setattr(os, where, fail)
    assert main([str(path)]) == 1
    assert "stays as it was recorded" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_two_at_once(tmp_path: Path) -> None:
    path = write_capture(JOB, tmp_path)
    before = read_recording(path)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(finish(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]
    assert list(files(tmp_path)) == ["t.json"]
    check_same(path, before)


def test_killed_while_finishing(tmp_path: Path) -> None:
    """The ranks' files are there until the result is; what is left over is harmless."""
    path = write_capture(JOB, tmp_path)
    before = read_recording(path)
    code = (
        "import os, sys; from hvdtune.timeline.viewers import joined_file, finish; "
        "os.replace = lambda *_: os.kill(os.getpid(), 9); finish.finish(sys.argv[1])"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    check_same(path, before)
    assert len(files(tmp_path)) == JOB.ranks + 1
    assert finish(path)
    assert list(files(tmp_path)) == ["t.json"]
    check_same(path, before)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "no.json")]) == 1
    (tmp_path / "t.json").write_text("[]")
    assert main([str(tmp_path / "t.json")]) == 1
    assert "is not a recording made by hvdtune" in capsys.readouterr().err
    path = write_capture(JOB, tmp_path)
    module = subprocess.run(
        [sys.executable, "-m", "hvdtune.timeline.viewers.finish", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (module.returncode, module.stderr, list(files(tmp_path))) == (0, "", ["t.json"])


@pytest.mark.long
def test_64_megabytes_of_names_of_every_kind(tmp_path: Path) -> None:
    letters = '"\\\n\r\t\0</script>梯度größe🚀\u2028\ud800{[,]}'
    job = replace(JOB, ranks=1)
    lines = capture_lines(job, 0, simulate(job))
    names = {}
    for number in range(20, 32_000):
        name = "".join(random.Random(number).choices(letters, k=800))
        names[number] = [number, name, 0, "allreduce", "float32", 4]
    items = list(names.values())
    lines[3:3] = [
        synthetic_capture.event("hvdtune_names", 0, {"names": items[at : at + 500]})
        for at in range(0, len(items), 500)
    ]
    path = tmp_path / "t.json"
    write_lines(path, lines)
    assert path.stat().st_size > 64 << 20
    before = read_recording(path)
    assert before.problems == []
    assert before.ranks[0].names[31_999].name == names[31_999][1]
    assert finish(path)
    json.loads(path.read_bytes())
    check_same(path, before)
