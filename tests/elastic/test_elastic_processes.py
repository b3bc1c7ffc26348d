"""Processes of an elastic job, real ones, with a driver that the test plays."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_programs import elastic_jobs
from support.elastic_job import ADDED, ElasticJob, lose_gain_and_let_go, number_of

from hvdtune.cli.main import main
from hvdtune.core.driver.messages import FAILURE, INTERRUPT, START
from hvdtune.live import client, top


def program_of(face: str) -> Callable[..., None]:
    if face == "numpy":
        return elastic_jobs.count
    pytest.importorskip("torch")
    from rank_programs import elastic_torch_jobs

    return elastic_torch_jobs.count


@pytest.fixture
def job_of() -> Iterator[Callable[..., ElasticJob]]:
    jobs: list[ElasticJob] = []

    def make(program: Callable[..., Any], *args: Any, **env: str) -> ElasticJob:
        jobs.append(ElasticJob(program, *args, **env))
        return jobs[-1]

    yield make
    for job in jobs:
        job.__exit__()


@pytest.mark.parametrize("face", ["numpy", "torch"])
def test_a_job_loses_gains_and_lets_go_processes(job_of, face):
    lose_gain_and_let_go(job_of(program_of(face)))


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


def test_a_rank_that_is_alone_and_calls_no_collectives_hears_of_hosts(job_of):
    job = job_of(elastic_jobs.only_commit)
    (p0,) = job.start(1)
    job.form(1, [p0], p0)
    job.wait_for_line("round", p0)
    (p1,) = job.start(1)
    job.driver.send(p0, "news", number=1, change=ADDED)
    job.hear("ready", p0, reason=INTERRUPT, generation=1)
    job.form(2, [p0, p1], p1)
    first, second = job.wait_for_line("round", p0, p1)
    assert first["begun"] == second["begun"] > [0, 0]
    result = job.end(p0, p1)
    assert [rank.returncode for rank in result.ranks] == [0, 0], result.describe()


def test_a_generation_that_hangs_is_ended_by_the_driver(job_of):
    job = job_of(elastic_jobs.count)
    p0, p1, p2 = job.start(3)
    job.form(1, [p0, p1, p2], p0, p1, p2)
    job.wait_for_line("stepped", p0, p1, p2)
    job.ranks.signal(1, signal.SIGSTOP)
    for identity in (p0, p2):
        job.driver.send(identity, "cancel", generation=1, why="p1 has been silent for 5 s")
    for ready in job.driver.wait_for("ready", p0, p2, reason=FAILURE, generation=1):
        assert "p1 has been silent for 5 s" in ready["why"]
        assert "ended the job" not in ready["why"], "no rank has"
    job.form(2, [p0, p2])
    job.wait_for_line("stepped", p0, p2)
    job.driver.send(p1, "leave", why="it was silent")
    job.ranks.signal(1, signal.SIGCONT)
    result = job.end(p0, p2)
    assert [rank.returncode for rank in result.ranks] == [0, 0, 0], result.describe()
    assert "Traceback" not in result[1].stderr


def test_a_second_elastic_function_is_elastic_too(job_of):
    job = job_of(elastic_jobs.count_twice)
    p0, p1 = job.start(2)
    job.form(1, [p0, p1], p0, p1)
    job.until.touch()
    job.hear("begun", p0, p1)
    job.hear("finished", p0, p1)
    job.hear("begun", p0, p1)
    job.wait_for_line("ends", p0, p1)
    job.wait_for_line("stepped", p0, p1)
    job.kill(p0)
    job.hear("ready", p1, reason=FAILURE, generation=1)
    job.form(2, [p1])
    job.wait_for_line("stepped", p1)
    job.until.with_name(f"{job.until.name}.2").touch()
    job.hear("finished", p1)
    result = job.ranks.wait(check=False)
    assert [rank.returncode for rank in result.ranks] == [-signal.SIGKILL, 0], result.describe()
    assert job.wait_for_line("after", p1)[0]["size"] == 1


def test_after_the_function_a_failure_ends_a_process_with_a_sentence(job_of):
    job = job_of(elastic_jobs.join_again)
    p0, p1 = job.start(2)
    job.form(1, [p0, p1], p0, p1)
    job.until.touch()
    job.hear("finished", p0, p1)
    job.wait_for_line("after", p0, p1)
    job.driver.send(p0, "cancel", generation=1, why="p1 has ended")
    text = job.wait_for_line("error", p0)[0]["text"]
    assert text.startswith("Horovod initialization failed: ")
    assert "p1 has ended; this process gets no other place" in text
    result = job.ranks.wait(check=False)
    assert [rank.returncode for rank in result.ranks] == [0, 0], result.describe()


def test_children_that_call_init_are_refused(job_of):
    job = job_of(elastic_jobs.have_children)
    p0, p1 = job.start(2)
    job.form(1, [p0, p1], p0, p1)
    for line in job.wait_for_line("children", p0, p1):
        refused = f"ValueError: Horovod initialization failed: process {line['pid']} has this place"
        assert refused in line["started"]
        assert line["forked"] in line["started"]
        assert line["forked"]
    job.wait_for_line("stepped", p0, p1)
    result = job.end(p0, p1)
    assert [rank.returncode for rank in result.ranks] == [0, 0], result.describe()


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
    job.start_late(2, 3)
    result = job.end(p0, p1)
    assert [rank.returncode for rank in result.ranks] == [0, 0, 1], result.describe()
    assert "ValueError: allgather_object() before the elastic function" in result[2].stderr


def test_the_state_may_be_lost_with_those_that_had_it(job_of):
    """The newcomer fails in its first synchronisation, and has nothing to go on with."""
    job = job_of(elastic_jobs.die_before_sync)
    (p0,) = job.start(1)
    job.form(1, [p0], p0)
    job.wait_for_line("stepped", p0)
    p1 = job.start_late(1, 2)
    job.hear("ready", p1, generation=0)
    job.driver.send(p0, "news", number=1, change=ADDED)
    job.hear("ready", p0, reason=INTERRUPT, generation=1)
    job.form(2, [p0, p1], p1)
    job.hear("ready", p1, reason=FAILURE, generation=2)
    job.driver.place(3, [p1])
    result = job.ranks.wait(check=False)
    assert [rank.returncode for rank in result.ranks] == [5, 1], result.describe()
    assert "RuntimeError: the state of this elastic job is lost" in result[1].stderr
    assert not job.driver.said("synchronised")[1:], "only the first one had it"


def test_ranks_that_check_at_different_steps_come_together_again(job_of):
    job = job_of(elastic_jobs.commit_early)
    p0, p1 = job.start(2)
    job.form(1, [p0, p1], p0, p1)
    for generation in range(1, 5):
        job.wait_for_line("stepped", p0, p1)
        for identity in (p0, p1):
            job.driver.send(identity, "news", number=generation, change=ADDED)
        job.hear("ready", p0, reason=INTERRUPT, generation=generation)
        job.hear("ready", p1, generation=generation)  # whichever reason
        job.form(generation + 1, [p0, p1])
        begun = job.wait_for_line("round", p0, p1)
        assert begun[0]["begun"] == begun[1]["begun"]
    job.ranks.kill_all()


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
    p3 = job.start_late(2, 3)
    job.hear("ready", p3, reason=START, generation=0)
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
    """Processes die, or hosts change, while others meet, synchronise, train or shut down."""
    dice = random.Random(seed)
    job = job_of(elastic_jobs.count, HOROVOD_START_TIMEOUT="2")
    living = job.start(4)
    generation = 1
    job.driver.place(generation, living, living)

    def have_state() -> set[str]:
        return {who for who in living if any(line["what"] == "round" for line in job.lines(who))}

    job.wait_for_line("round", *living)
    for _ in range(20):
        time.sleep(dice.choice((0.0, 0.002, 0.01, 0.05)))
        settled = have_state()
        victims = [one for one in living if settled - {one}]
        if victims and dice.random() < 0.7:
            victim = dice.choice(victims)
            job.kill(victim)
            job.ranks.processes[number_of(victim)].wait()
            living.remove(victim)
            if dice.random() < 0.8:  # else the engines tell each other
                for identity in living:
                    job.driver.send(identity, "cancel", generation=generation)
        else:
            for identity in living:
                job.driver.send(identity, "news", number=generation, change=ADDED)
        job.hear("ready", *living, generation=generation)
        if len(living) < dice.randrange(2, 6):
            living.append(job.start_late(len(living), len(living) + 1))
            job.hear("ready", living[-1], reason=START, generation=0)
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


def test_recordings_the_tuner_and_top_know_generations(job_of):
    job = job_of(
        elastic_jobs.count,
        HOROVOD_TIMELINE="t.json",
        HOROVOD_AUTOTUNE="1",
        HOROVOD_AUTOTUNE_LOG="tune.csv",
        HVDTUNE_METRICS_FILE="metrics.prom",
    )
    p0, p1, p2 = job.start(3)
    job.form(1, [p0, p1, p2], p0, p1, p2)
    job.wait_for_line("stepped", p0, p1, p2)
    watched = top._Job(client.find(job.driver.job))
    assert watched.status()["size"] == 3
    job.kill(p2)
    job.hear("ready", p0, p1, reason=FAILURE)
    job.form(2, [p0, p1])
    job.wait_for_line("stepped", p0, p1)
    assert watched.status()["size"] == 2
    job.kill(p0)  # rank 0: the next one is another process
    job.hear("ready", p1, reason=FAILURE)
    job.form(3, [p1])
    job.wait_for_line("stepped", p1)
    assert watched.status()["size"] == 1
    result = job.end(p1)
    assert result[1].returncode == 0, result.describe()
    recordings = sorted(path.name for path in job.directory.glob("t.*json*"))
    assert recordings == ["t.generation2.json", "t.generation3.json", "t.json"], result.describe()
    for number, name in enumerate(recordings):
        text = (job.directory / name).read_text()
        assert isinstance(json.loads(text), list)
        assert f"generation {(2, 3, 1)[number]}: " in text
    whole = str(job.directory / "whole.json")
    files = [str(job.directory / name) for name in recordings]
    assert main(["timeline", "view", *files, "-o", whole]) == 0
    events = json.loads(Path(whole).read_text())
    moments = [event for event in events if event["name"].startswith("GENERATION")]
    assert [one["name"] for one in moments] == [f"GENERATION {number}" for number in (1, 2, 3)]
    assert [one["args"]["text"].split(",")[0] for one in moments] == [
        f"generation {number}: {size} ranks" for number, size in ((1, 3), (2, 2), (3, 1))
    ]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.partition(" · ")[0] for name in names] == ["rank 0", "rank 1 → 0", "rank 2"]
    # In the others a rank was killed.
    assert main(["timeline", "check", str(job.directory / "t.generation3.json")]) == 0
    verdicts = (job.directory / "tune.csv").read_text().splitlines()[1:]
    assert "tuning was not finished" in verdicts[0], "what generation 1 has written is kept"
    assert "there is one rank" in verdicts[-1]
    assert "\nhvdtune_ranks 1.0\n" in (job.directory / "metrics.prom").read_text()
