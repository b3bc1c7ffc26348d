"""Processes of an elastic job, real ones, with a driver that the test plays."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from rank_programs import elastic_jobs
from support.elastic_driver import TIMEOUT, ElasticDriver
from support.jobs.ranks import (
    Ranks,
    RanksResult,
    clean_environment,
    new_directory,
    program_command,
)  # fmt: skip

from hvdtune.core.driver.messages import FAILURE, INTERRUPT, START
from hvdtune.elastic import HostUpdateResult

ADDED, REMOVED = int(HostUpdateResult.added), int(HostUpdateResult.removed)

Line = dict[str, Any]


class Job:
    """Processes "p0", "p1", … of one program, and their driver."""

    def __init__(self, program: Callable[..., Any], *args: Any, **env: str) -> None:
        self.directory = new_directory()
        self.driver = ElasticDriver()
        self.ranks = Ranks(self.directory, self.directory / "values")
        self.until = self.directory / "until"
        self._module = program.__module__
        self._command = program_command(program, [str(self.until), *args], self.directory)
        self._env = env
        self._read: dict[str, int] = {}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ranks.kill_all()
        self.driver.__exit__()

    def start(self, count: int) -> list[str]:
        """Start so many processes; return once they wait for their places."""
        began = len(self.ranks.processes)
        found = [f"p{number}" for number in range(began, began + count)]
        for identity in found:
            environment = {**self._env, **self.driver.environment(identity)}
            self.ranks.start(self._command, clean_environment(environment), self._module)
        for identity in found:
            self.hear("ready", identity, reason=START, generation=0)
        return found

    def hear(self, kind: str, *identities: str, **fields: Any) -> None:
        """Wait until each process has said this."""
        try:
            self.driver.wait_for(kind, *identities, **fields)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.ranks._stop().describe()}") from None

    def form(self, generation: int, members: Sequence[str], *newcomers: str, **place: Any) -> None:
        """Give places to the members, and wait until they have come together."""
        self.driver.place(generation, members, newcomers, **place)
        self.hear("joined", *members, generation=generation)

    def kill(self, identity: str) -> None:
        self.ranks.signal(number_of(identity), signal.SIGKILL)

    def lines(self, identity: str) -> list[Line]:
        """All that a process has printed in whole lines."""
        text = self.ranks.stdout(number_of(identity))
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_line(self, what: str, *identities: str) -> list[Line]:
        """The next line of this kind of each process, behind those that were waited for."""
        found = []
        for identity in identities:
            deadline = time.monotonic() + TIMEOUT
            while True:
                lines = self.lines(identity)
                begin = self._read.get(identity, 0)
                hits = [n for n, line in enumerate(lines) if n >= begin and line["what"] == what]
                if hits:
                    self._read[identity] = hits[0] + 1
                    found.append(lines[hits[0]])
                    break
                ended = self.ranks.processes[number_of(identity)].poll() is not None
                if ended or time.monotonic() > deadline:
                    result = self.ranks._stop()
                    raise AssertionError(f"no {what!r} of {identity}\n{result.describe()}")
                time.sleep(0.01)
        return found

    def end(self, *members: str) -> RanksResult:
        """Let the elastic function return; the processes end."""
        self.until.touch()
        self.hear("finished", *members)
        return self.ranks.wait(check=False)


def number_of(identity: str) -> int:
    return int(identity[1:])


def program_of(face: str) -> Callable[..., None]:
    if face == "numpy":
        return elastic_jobs.count
    pytest.importorskip("torch")
    from rank_programs import elastic_torch_jobs

    return elastic_torch_jobs.count


@pytest.fixture
def job_of() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(program: Callable[..., Any], *args: Any, **env: str) -> Job:
        jobs.append(Job(program, *args, **env))
        return jobs[-1]

    yield make
    for job in jobs:
        job.__exit__()


@pytest.mark.parametrize("face", ["numpy", "torch"])
def test_a_job_loses_gains_and_lets_go_processes(job_of, face):
    job = job_of(program_of(face))
    driver = job.driver
    p0, p1, p2, p3 = first = job.start(4)
    job.form(1, first, *first)
    job.wait_for_line("round", *first)
    job.wait_for_line("stepped", *first)

    job.kill(p0)
    survivors = [p1, p2, p3]
    job.hear("ready", *survivors, reason=FAILURE, generation=1)
    job.form(2, survivors)
    begun = job.wait_for_line("round", *survivors)
    assert {line["size"] for line in begun} == {3}
    assert len({tuple(line["begun"]) for line in begun}) == 1
    job.wait_for_line("stepped", *survivors)

    (p4,) = job.start(1)
    for identity in survivors:
        driver.send(identity, "news", number=1, change=ADDED)
    job.hear("ready", *survivors, reason=INTERRUPT, generation=2)
    four = [*survivors, p4]
    job.form(3, four, p4)
    begun = job.wait_for_line("round", *four)
    assert {line["size"] for line in begun} == {4}
    step, total = begun[0]["begun"]
    assert {tuple(line["begun"]) for line in begun} == {(step, total)}
    job.wait_for_line("stepped", *four)

    for identity in four:
        driver.send(identity, "news", number=2, change=REMOVED)
    job.hear("ready", *four, reason=INTERRUPT, generation=3)
    driver.send(p2, "leave", why="its host is gone")
    left = [p1, p3, p4]
    job.form(4, left, synchronise=False)
    begun = job.wait_for_line("round", *left)
    assert {line["size"] for line in begun} == {3}
    assert len({tuple(line["begun"]) for line in begun}) == 1
    job.wait_for_line("stepped", *left)

    result = job.end(*left)
    codes = [rank.returncode for rank in result.ranks]
    assert codes == [-signal.SIGKILL, 0, 0, 0, 0], result.describe()
    assert "Traceback" not in result[2].stderr
    for identity in left:
        after = job.wait_for_line("after", identity)[0]
        assert (after["same"], after["size"]) == (True, 3)
    # Three steps at least in each generation, each of as many as there were ranks.
    ends = next(line for line in job.lines(p1) if line["what"] == "ends")
    assert ends["total"] >= 3 * (4 + 3 + 4 + 3)


def test_a_start_is_cancelled(job_of):
    """A process that dies before it has joined holds nobody up."""
    job = job_of(elastic_jobs.count)
    p0, p1, p2 = job.start(3)
    job.ranks.signal(2, signal.SIGSTOP)
    job.driver.place(1, [p0, p1, p2], [p0, p1, p2])
    job.kill(p2)
    for identity in (p0, p1):
        job.driver.send(identity, "cancel", generation=1)
    job.hear("ready", p0, p1, reason=FAILURE, generation=1)
    job.form(2, [p0, p1], p0, p1)
    job.wait_for_line("stepped", p0, p1)
    result = job.end(p0, p1)
    assert [rank.returncode for rank in result.ranks] == [0, 0, -signal.SIGKILL], result.describe()


def test_a_generation_that_hangs_is_ended_by_the_driver(job_of):
    job = job_of(elastic_jobs.count)
    p0, p1, p2 = job.start(3)
    job.form(1, [p0, p1, p2], p0, p1, p2)
    job.wait_for_line("stepped", p0, p1, p2)
    job.ranks.signal(1, signal.SIGSTOP)
    for identity in (p0, p2):
        job.driver.send(identity, "cancel", generation=1)
    job.hear("ready", p0, p2, reason=FAILURE, generation=1)
    job.form(2, [p0, p2])
    job.wait_for_line("stepped", p0, p2)
    job.driver.send(p1, "leave", why="it was silent")
    job.ranks.signal(1, signal.SIGCONT)
    result = job.end(p0, p2)
    assert [rank.returncode for rank in result.ranks] == [0, 0, 0], result.describe()
    assert "Traceback" not in result[1].stderr


def test_a_driver_that_goes_ends_a_process_with_a_sentence(job_of):
    job = job_of(elastic_jobs.count)
    p0, p1 = job.start(2)
    job.form(1, [p0, p1], p0, p1)
    job.wait_for_line("stepped", p0, p1)
    job.driver.drop(p1)
    job.kill(p0)
    result = job.ranks.wait(check=False)
    assert result[1].returncode == 1, result.describe()
    assert "hvdtune: the driver of this elastic job at " in result[1].stderr
    assert "Traceback" not in result[1].stderr


def test_a_newcomers_early_collective_is_an_error_that_names_it(job_of):
    job = job_of(elastic_jobs.gather_first)
    p0, p1 = job.start(2)
    job.form(1, [p0, p1], p0, p1)
    job.wait_for_line("stepped", p0, p1)
    (p2,) = job.start(1)
    for identity in (p0, p1):
        job.driver.send(identity, "news", number=1, change=ADDED)
    job.hear("ready", p0, p1, reason=INTERRUPT)
    job.form(2, [p0, p1, p2], p2)
    job.hear("ready", p0, p1, reason=FAILURE, generation=2)
    job.form(3, [p0, p1])
    job.wait_for_line("stepped", p0, p1)
    result = job.end(p0, p1)
    assert [rank.returncode for rank in result.ranks] == [0, 0, 1], result.describe()
    assert "ValueError: allgather_object() before the elastic function" in result[2].stderr


def test_process_sets_are_made_again(job_of):
    job = job_of(elastic_jobs.use_sets)
    p0, p1, p2 = job.start(3)
    job.form(1, [p0, p1, p2], p0, p1, p2)
    first = job.wait_for_line("sets", p0, p1, p2)
    assert first[0]["sums"] == {"[0, 1]": 2, "[0, 2]": 2, "[1, 2]": None}
    assert first[2]["sums"] == {"[0, 1]": None, "[0, 2]": 2, "[1, 2]": 2}
    job.kill(p2)
    job.hear("ready", p0, p1, reason=FAILURE)
    job.form(2, [p0, p1])
    for line in job.wait_for_line("sets", p0, p1):
        assert line["sums"]["[0, 1]"] == 2
        for lost in ("[0, 2]", "[1, 2]"):
            assert "rank 2 does not exist in a job of 2 processes" in line["sums"][lost]
    (p3,) = job.start(1)
    for identity in (p0, p1):
        job.driver.send(identity, "news", number=1, change=ADDED)
    job.hear("ready", p0, p1, reason=INTERRUPT)
    job.form(3, [p0, p1, p3], p3)
    again = job.wait_for_line("sets", p0, p1, p3)
    assert [line["sums"] for line in again] == [line["sums"] for line in first]
    result = job.end(p0, p1, p3)
    assert [rank.returncode for rank in result.ranks] == [0, 0, -signal.SIGKILL, 0], (
        result.describe()
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_random_deaths_in_every_phase(job_of, seed):
    """Processes die while others meet, synchronise, train or shut down; nothing hangs."""
    dice = random.Random(seed)
    job = job_of(elastic_jobs.count, HOROVOD_START_TIMEOUT="2")
    living = job.start(4)
    generation = 1
    job.driver.place(generation, living, living)

    def have_state() -> set[str]:
        return {who for who in living if any(line["what"] == "round" for line in job.lines(who))}

    job.wait_for_line("round", *living)
    for _ in range(25):
        time.sleep(dice.choice((0.0, 0.002, 0.01, 0.05)))
        settled = have_state()
        victim = dice.choice([one for one in living if settled - {one}])
        job.kill(victim)
        job.ranks.processes[number_of(victim)].wait()
        living.remove(victim)
        if dice.random() < 0.8:  # else the engines tell each other
            for identity in living:
                job.driver.send(identity, "cancel", generation=generation)
        job.hear("ready", *living, generation=generation)
        if len(living) < dice.randrange(3, 6):
            living += job.start(1)
        generation += 1
        # Who has never had the state comes last, and is a newcomer still.
        settled = have_state()
        living.sort(key=lambda one: one not in settled)
        job.driver.place(generation, living, [one for one in living if one not in settled])
    job.hear("joined", *living, generation=generation)
    job.until.touch()
    job.hear("finished", *living)
    result = job.ranks.wait(check=False)
    for number, rank in enumerate(result.ranks):
        expected = 0 if f"p{number}" in living else -signal.SIGKILL
        assert rank.returncode == expected, result.describe()
    for identity in living:
        assert job.wait_for_line("after", identity)[0]["same"]
        begun = [line["begun"][0] for line in job.lines(identity) if line["what"] == "round"]
        assert begun == sorted(begun), "what was committed stays"
