"""Processes of an elastic job, real ones, whose driver the test plays, and a scenario of them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from hvdtune.core.driver.messages import FAILURE, INTERRUPT, START
from hvdtune.elastic import HostUpdateResult
from support.elastic_driver import TIMEOUT, ElasticDriver, place_variables
from support.jobs.ranks import (
    Ranks,
    RanksResult,
    clean_environment,
    new_directory,
    program_command,
)  # fmt: skip

ADDED, REMOVED = int(HostUpdateResult.added), int(HostUpdateResult.removed)

Line = dict[str, Any]


class ElasticJob:
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

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ranks.kill_all()
        self.driver.__exit__()

    def start(self, count: int, **place: str) -> list[str]:
        """Start so many processes; return once they wait for their places."""
        began = len(self.ranks.processes)
        found = [f"p{number}" for number in range(began, began + count)]
        for identity in found:
            environment = {**self._env, **self.driver.environment(identity), **place}
            self.ranks.start(self._command, clean_environment(environment), self._module)
        for identity in found:
            self.hear("ready", identity, reason=START, generation=0, function="")
        return found

    def start_late(self, rank: int, size: int) -> str:
        """Start a process that expects this place in a job that runs; return once it is told so."""
        (identity,) = self.start(1, **place_variables(rank, size))
        self.driver.send(identity, "prepare")
        return identity

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


def lose_gain_and_let_go(job: ElasticJob) -> None:
    """Four processes, of which one is killed; one comes; one is let go. What they say is checked.

    The program prints as `rank_programs.elastic_jobs.count` does.
    """
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

    p4 = job.start_late(3, 4)
    job.hear("ready", p4, reason=START, generation=0)
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
