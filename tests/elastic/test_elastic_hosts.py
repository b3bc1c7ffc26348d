"""Elastic jobs on hosts of their own: real ssh, real networks between them that may be cut."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hosts.hosts_rig import Link, Rig, hosts_rig, why_not
from support.jobs.launcher import TIMEOUT, wait_until_gone
from support.jobs.ranks import clean_environment, hvdtune_command

REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
PROGRAM = Path(__file__).parents[1] / "rank_programs" / "elastic_epochs.py"


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(3, Link(rate=100e6)) as running:
        yield running


class Job:
    """A job that hosta's launcher runs on the hosts that `hosts` has last been given."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()

    def hosts(self, *hosts: str) -> None:
        """From now on the script prints these."""
        (self.folder / "new").write_text("".join(f"{host}\n" for host in hosts))
        os.replace(self.folder / "new", self.folder / "hosts")

    @contextlib.contextmanager
    def running(self, *words: str, sizes: list[int]) -> Iterator[subprocess.Popen[str]]:
        plan = {"log": str(self.log), "sizes": sizes, "fails": {}, "how": ""}
        command = hvdtune_command(
            "run", *words, "--host-discovery-script", f"cat {self.folder}/hosts",
            sys.executable, str(PROGRAM), json.dumps(plan),
        )  # fmt: skip
        environment = {
            **self.rig.environment(self.folder / "cache"),
            "HVDTUNE_ELASTIC_HEARTBEAT": "2",
        }
        with (self.folder / "out").open("wb") as output:
            process = subprocess.Popen(
                self.rig.on("hosta", command), env=clean_environment(environment),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait(TIMEOUT)

    def output(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT
        while not (value := condition()):
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        return value

    def processes(self) -> list[int]:
        """The ranks that live, wherever."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if str(PROGRAM).encode() in words[1:2] and str(self.log) in str(words):
                        found.append(int(entry.name))
        return found


@pytest.fixture
def job(rig, tmp_path):
    return Job(rig, tmp_path)


def test_hosts_come_and_go(job):
    job.hosts("hosta:1", "hostb:2")
    with job.running("-np", "3", "--min-np", "2", sizes=[3, 4, 2]) as launcher:
        job.wait_for(lambda: len(job.notes()) == 1)
        job.hosts("hosta:1", "hostb:2", "hostc:1")
        job.wait_for(lambda: len(job.notes()) == 2)
        job.hosts("hostb:1", "hostc:1")
        assert launcher.wait(TIMEOUT) == 0, job.output()
    assert [note["size"] for note in job.notes()] == [3, 4, 2]
    assert [note["host"] for note in job.notes()] == ["hosta", "hosta", "hostb"]
    assert [note["start_rank"] for note in job.notes()] == [0, 0, 1]
    assert [note["generation"] for note in job.notes()] == [1, 2, 3]
    wait_until_gone(job.processes())


def test_a_host_that_is_cut_off(job, rig):
    job.hosts("hosta:1", "hostb:2")
    try:
        with job.running("-np", "3", "--min-np", "1", sizes=[3, 1, 2]) as launcher:
            job.wait_for(lambda: len(job.notes()) == 1)
            rig.cut("hostb")
            job.wait_for(lambda: len(job.notes()) == 2)
            job.hosts("hosta:1", "hostb:2", "hostc:1")
            assert launcher.wait(TIMEOUT) == 0, job.output()
    finally:
        rig.cut("hostb", connected=True)
    assert [note["size"] for note in job.notes()] == [3, 1, 2]
    assert "hostb is excluded for ever" in job.output()
    job.wait_for(lambda: not job.processes())  # those of hostb learn of it when it is back


def test_a_host_that_there_is_not_and_one_that_is_not_well(job, rig):
    job.hosts("hosta:1", "hostb:1", "nowhere:1")
    sick = '[ "$HOROVOD_HOSTNAME" != hostc ] || { echo no GPU >&2; exit 7; }'
    words = ["-np", "2", "--min-np", "2", "--health-check-script", sick]
    with job.running(*words, sizes=[2, 3]) as launcher:
        job.wait_for(lambda: len(job.notes()) == 1)
        job.hosts("hosta:1", "hostb:1", "hostc:1")
        job.wait_for(lambda: "hostc is excluded" in job.output())
        job.hosts("hosta:1", "hostb:2", "hostc:1")
        assert launcher.wait(TIMEOUT) == 0, job.output()
    assert "health check of hostc: no GPU" in job.output()
    assert "its health check ended with exit status 7 (no GPU)" in job.output()
    assert "nowhere is excluded for ever" in job.output()
