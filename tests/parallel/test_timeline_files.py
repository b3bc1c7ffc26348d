"""What becomes of a timeline's file that other jobs want too, or that cannot be written on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_programs import capture
from support.jobs.launcher import Ended, start
from support.jobs.ranks import hvdtune_command, run_ranks, start_ranks
from support.recordings.captures import read_capture
from support.tiers import EVERY, long_too

from hvdtune.cli.main import main

SCRIPT = """
import resource, time
import numpy as np
import hvdtune as hvd

hvd.init()
if str(hvd.rank()) in os.environ.get("LIMITED", ""):
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
step, stop = 0, np.zeros(1, np.float32)
while not stop[0]:
    for name in "abcd":
        hvd.allreduce(np.ones(100, np.float32), name=name)
    hvd.mark_step()
    step += 1
    if step == 5:
        print("steps", hvd.rank(), flush=True)
    stop[0] = os.path.exists(os.environ["STOP"])
    stop = hvd.allreduce(stop, op=hvd.Max, name="stop")
    time.sleep(0.002)
print("ended", hvd.rank(), step, flush=True)
"""
NAMES = {f"allreduce.{name}" for name in ("a", "b", "c", "d")}


class Job:
    """A job of two ranks under the launcher that records until it is told to stop.

    It names no stragglers: on a busy machine, one rank may well hold the other up.
    """

    def __init__(self, folder: Path, number: int, file: str = "t.json", **env: str) -> None:
        self.stop = folder / f"stop{number}"
        words = ["run", "-np", "2", "--timeline-filename", file, "--straggler-share", "0"]
        self.launcher = start(folder, words, SCRIPT, {"STOP": str(self.stop), **env})

    def wait_until_recording(self) -> None:
        self.launcher.wait_for_lines("steps ", 2)

    def end(self) -> Ended:
        self.stop.touch()
        return self.launcher.wait()


def steps_of(ended: Ended) -> int:
    [steps] = {int(line.split()[-1]) for line in ended.stdout.splitlines() if "ended " in line}
    return steps


def told(ended: Ended) -> list[str]:
    """What was said of the timeline's file."""
    return [line for line in ended.stderr.splitlines() if " the timeline " in line]


def check_whole(path: Path, ended: Ended) -> str:
    """Every tensor of every step of both ranks is there; the name of the job."""
    assert ended.status == 0, ended.stderr
    assert main(["timeline", "check", str(path)]) == 0
    ranks = read_capture(path)
    assert sorted(ranks) == [0, 1]
    for rank in ranks.values():
        names = [name for name in rank.tensor_names() if name in NAMES]
        assert len(names) == 4 * steps_of(ended)
    [job] = {str(rank.identity["job"]) for rank in ranks.values()}
    return job


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Jobs that end with the test."""
    started: list[Job] = []
    yield started
    for job in started:
        job.launcher.__exit__()


def test_a_second_job_takes_another_file_and_says_so(tmp_path: Path, jobs: list[Job]) -> None:
    jobs.append(Job(tmp_path, 1))
    jobs[0].wait_until_recording()
    jobs.append(Job(tmp_path, 2))
    jobs[1].wait_until_recording()
    second, first = jobs[1].end(), jobs[0].end()
    [said] = [line for line in second.stderr.splitlines() if "in use" in line]
    owners = {rank.identity["pid"] for rank in read_capture(tmp_path / "t.json").values()}
    owner = int(said.split("(process ")[1].split(")")[0])
    assert f"{tmp_path}/t.json is in use by another job (process {owner})" in said
    assert owner in owners
    assert f"this job records to {tmp_path}/t-2.json instead" in said
    assert told(second)[-1] == f"hvdtune run: the timeline of this job is {tmp_path}/t-2.json"
    assert first.stderr == ""
    assert check_whole(tmp_path / "t.json", first) != check_whole(tmp_path / "t-2.json", second)
    # A third one, after both have ended, takes the file that it is given.
    jobs.append(Job(tmp_path, 3))
    jobs[2].wait_until_recording()
    third = jobs[2].end()
    assert third.stderr == ""
    check_whole(tmp_path / "t.json", third)


@pytest.mark.parametrize("file", ["t.json", "t.json.gz"] if EVERY else ["t.json"])
def test_jobs_that_start_at_once_get_a_file_each(
    tmp_path: Path, jobs: list[Job], file: str
) -> None:
    jobs += [Job(tmp_path, number, file) for number in range(3)]
    for job in jobs:
        job.wait_until_recording()
    ended = [job.end() for job in jobs]
    found = sorted(path.name for path in tmp_path.glob("t*"))
    assert found == sorted(file.replace("t", name, 1) for name in ("t", "t-2", "t-3"))
    names = set()
    for one in ended:
        assert one.status == 0
        path = Path([tmp_path / file, *(line.split()[-1] for line in told(one))][-1])
        names.add(path.name)
        assert main(["timeline", "check", str(path)]) == 0
        if path.suffix != ".gz":
            check_whole(path, one)
    assert sorted(names) == found


def test_what_is_kept_under_the_next_name_stays(tmp_path: Path, jobs: list[Job]) -> None:
    """Another recording, or a rank's file of one."""
    (tmp_path / "t-2.json").write_text("kept")
    (tmp_path / "t-3.rank1.json").write_text("kept, too")
    (tmp_path / "t.rank1.json").write_text("in use")
    with open(tmp_path / "t.rank1.json", "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        jobs.append(Job(tmp_path, 1))
        jobs[0].wait_until_recording()
        ended = jobs[0].end()
    assert f"in use by another job (process {os.getpid()})" in ended.stderr
    check_whole(tmp_path / "t-4.json", ended)
    assert (tmp_path / "t-2.json").read_text() == "kept"
    assert (tmp_path / "t-3.rank1.json").read_text() == "kept, too"
    assert (tmp_path / "t.rank1.json").read_text() == "in use"
    assert not (tmp_path / "t.json").exists()


def test_a_file_that_is_being_joined_is_in_use(tmp_path: Path, jobs: list[Job]) -> None:
    (tmp_path / "t.json").write_text("in use")
    with open(tmp_path / "t.json") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        jobs.append(Job(tmp_path, 1))
        jobs[0].wait_until_recording()
        ended = jobs[0].end()
    assert "in use by a process that joins it with other ranks' files" in ended.stderr
    assert (tmp_path / "t.json").read_text() == "in use"
    check_whole(tmp_path / "t-2.json", ended)


def test_the_second_job_is_joined_when_it_fails(tmp_path: Path, jobs: list[Job]) -> None:
    """And the first one is left alone."""
    jobs.append(Job(tmp_path, 1))
    jobs[0].wait_until_recording()
    jobs.append(Job(tmp_path, 2))
    jobs[1].wait_until_recording()
    jobs[1].launcher.wait_for(lambda: (tmp_path / "t-2.rank1.json").stat().st_size > 5000)
    os.kill(read_capture(tmp_path / "t-2.json")[1].identity["pid"], signal.SIGKILL)
    second = jobs[1].launcher.wait()
    assert second.status != 0
    assert told(second)[-1] == f"hvdtune run: the timeline of this job is {tmp_path}/t-2.json"
    assert not (tmp_path / "t-2.rank1.json").exists()
    assert sorted(read_capture(tmp_path / "t-2.json")) == [0, 1]
    assert (tmp_path / "t.rank1.json").exists()
    check_whole(tmp_path / "t.json", jobs[0].end())


def test_horovods_layout_takes_another_file_too(tmp_path: Path, jobs: list[Job]) -> None:
    for number in (1, 2):
        jobs.append(Job(tmp_path, number, HVDTUNE_TIMELINE_FORMAT="horovod"))
        jobs[-1].wait_until_recording()
    second, first = jobs[1].end(), jobs[0].end()
    assert f"this job records to {tmp_path}/t-2.json instead" in second.stderr
    for name, ended in (("t.json", first), ("t-2.json", second)):
        events = json.loads((tmp_path / name).read_text())
        begun = [one for one in events if one.get("name") == "ALLREDUCE"]
        assert len(begun) == 5 * steps_of(ended)


@pytest.mark.parametrize("forks", [False, True])
def test_a_file_is_free_once_its_process_has_ended(tmp_path: Path, forks: bool) -> None:
    """However it ended, and whatever it has forked."""
    path = tmp_path / "t.json"
    env = {"HOROVOD_TIMELINE": str(path)}
    child = 0
    try:
        with start_ranks(2, capture.train_until_killed, forks, env=env) as ranks:
            for rank in range(2):
                ranks.wait_for_output(rank, "running")
            if forks:
                child = int(ranks.stdout(0).split("forked ")[1].split()[0])
            for rank in range(2):
                ranks.signal(rank, signal.SIGKILL)
            for process in ranks.processes:
                process.wait(60)
            if child:
                os.kill(child, 0)  # it lives, and has what its parent had open
            with start_ranks(2, capture.train, 3, env=env) as again:
                result = again.wait()
        assert "in use" not in result[0].stderr + result[1].stderr
        assert [one.name for one in tmp_path.iterdir()] == ["t.json"]
        assert sorted(read_capture(path)) == [0, 1]
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def cut_off(ended: Ended) -> list[str]:
    return [line for line in ended.stderr.splitlines() if "recording has ended" in line]


@pytest.mark.parametrize(
    ("limited", "layout"),
    # Horovod's layout is written by rank 0 alone.
    [
        ("1", "hvdtune"),
        ("0", "horovod"),
        *(
            pytest.param(*values, marks=pytest.mark.long)
            for values in (("0", "hvdtune"), ("01", "hvdtune"), ("01", "horovod"))
        ),
    ],
)
def test_a_full_disk_is_said_where_it_matters(
    tmp_path: Path, jobs: list[Job], limited: str, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By rank 0 of its own file, by the launcher at the end, and by `check` afterwards."""
    jobs.append(Job(tmp_path, 1, LIMITED=limited, HVDTUNE_TIMELINE_FORMAT=layout))
    path = tmp_path / "t.json"
    rank0 = f"cannot write the timeline to {path}: File too large; recording has ended"
    awaited = rank0 if "0" in limited else "recording has ended"
    jobs[0].launcher.wait_for(lambda: awaited in jobs[0].launcher.output(1))
    ended = jobs[0].end()
    assert ended.status == 0
    assert steps_of(ended) > 5
    warned = cut_off(ended)
    assert len(warned) <= 2
    assert sum(rank0 in line for line in warned) == int("0" in limited)
    why = "the file reached the size limit of this process (File too large)"
    assert f"hvdtune run: the timeline {path} was cut off: {why}" in told(ended)[-1]
    capsys.readouterr()
    assert main(["timeline", "check", str(path)]) == 1
    shown = capsys.readouterr().out
    assert why in shown
    assert "still" not in shown
    if layout == "hvdtune":
        assert "the recording was cut off at " in shown
        assert ", after step " in shown
        for file in tmp_path.glob("t*.json"):
            json.loads(file.read_text())


def removed(path: Path) -> None:
    path.unlink()


def folder_removed(path: Path) -> None:
    shutil.rmtree(path.parent)


def replaced(path: Path) -> None:
    path.with_name("other").write_text("mine")
    path.with_name("other").rename(path)


def emptied(path: Path) -> None:
    path.write_text("mine")


@pytest.mark.parametrize("change", long_too(removed, emptied, long=[folder_removed, replaced]))
def test_a_file_that_others_change_is_no_longer_recorded_to(
    tmp_path: Path, jobs: list[Job], change: object
) -> None:
    path = tmp_path / "folder" / "t.json"
    path.parent.mkdir()
    jobs.append(Job(tmp_path, 1, str(path)))
    jobs[0].wait_until_recording()
    change(path)  # type: ignore[operator]
    jobs[0].launcher.wait_for(lambda: "[0]: cannot" in jobs[0].launcher.output(1))
    ended = jobs[0].end()
    assert ended.status == 0
    [said] = [line for line in cut_off(ended) if "[0]: cannot" in line]
    what = "another process has changed it" if change is emptied else "it has been removed"
    assert f"cannot write the timeline to {path}: {what}" in said
    assert "Traceback" not in ended.stderr
    assert "still being recorded" not in ended.stderr
    if change in (replaced, emptied):
        assert path.read_text() == "mine"
    else:
        assert not path.exists()


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it mounts a small file system")
@pytest.mark.parametrize("kilobytes", [100, 200, 400] if EVERY else [200])
def test_a_small_file_system(tmp_path: Path, kilobytes: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n" + SCRIPT.replace('os.path.exists(os.environ["STOP"])', "step > 2500")
    )
    (tmp_path / "small").mkdir()
    run = hvdtune_command("run", "-np", "2", "--timeline-filename", "t.json", "python", str(script))
    check = hvdtune_command("timeline", "check", "t.json")
    text = (
        f"mount -t tmpfs -o size={kilobytes}k none {tmp_path}/small || exit 77\n"
        f"cd {tmp_path}/small\n{' '.join(run)}\necho status $?\n{' '.join(check)}\necho check $?"
    )
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", text], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("no file system can be mounted here")
    told = done.stdout + done.stderr
    assert "status 0" in told
    assert "check 1" in told
    full = "the disk was full (No space left on device)"
    assert "[0]: cannot write the timeline to" in done.stderr
    assert f"t.json was cut off: {full}" in done.stderr.splitlines()[-1]
    assert re.search(r"Ranks? 0(, 1)?: the recording was cut off at ", done.stdout)
    assert full in done.stdout
    assert "still being recorded" not in told


@pytest.mark.parametrize("relative", [False, True])
def test_a_folder_whose_name_is_no_text(tmp_path: Path, relative: bool) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9"
    folder = Path(os.fsdecode(name))
    folder.mkdir()
    if relative:
        run_ranks(2, capture.train_in, name.hex(), env={"HOROVOD_TIMELINE": "t.json"})
    else:
        run_ranks(2, capture.train, 3, env={"HOROVOD_TIMELINE": str(folder / "t.json")})
    assert sorted(read_capture(folder / "t.json")) == [0, 1]


def test_joining_a_file_that_is_being_recorded_is_refused_and_harmless(
    tmp_path: Path, jobs: list[Job]
) -> None:
    jobs.append(Job(tmp_path, 1))
    jobs[0].wait_until_recording()
    assert main(["timeline", "merge", str(tmp_path / "t.json")]) != 0
    ended = jobs[0].end()
    assert "recording has ended" not in ended.stderr
    check_whole(tmp_path / "t.json", ended)


def test_a_recording_is_asked_for_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    env = {"HOROVOD_TIMELINE": "DYNAMIC"}
    values = run_ranks(1, capture.asked_from, os.fsencode(folder).hex(), env=env).values
    assert values == (0,)
    assert sorted(read_capture(folder / "t.json")) == [0]
