"""Deaths in every phase, and many of them: training ends as it would have without any."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from rank_programs.elastic_training import reference
from support.jobs.launcher import Launcher, start
from support.tiers import EVERY, long_too

PROGRAM = Path(__file__).parents[1] / "rank_programs/elastic_training.py"
STEPS = 30
PHASES = (
    *("meeting", "start", "sync", "in sync", "synchronised", "step", "operation", "barrier"),
    *("join", "commit", "check", "reset", "return", "end"),
)
VICTIMS = [
    (phase, rank)
    for number, phase in enumerate(PHASES)
    for rank in range(3)
    if EVERY or rank == number % 3
]


def training(folder: Path, flags: list[str], deaths: list[list[object]], steps: int, pause: float):
    """The flags and words of a job, and where its rank 0 notes steps."""
    log = folder / "log"
    log.touch()
    plan = {"log": str(log), "steps": steps, "pause": pause, "deaths": deaths}
    words = ["--min-np", "1", "--replace-failed", *flags, sys.executable, str(PROGRAM)]
    return ["run", *words, json.dumps(plan)], log


def check(log: Path, steps: int, deaths: int) -> None:
    """Every step has been done, and whoever did it found what one process finds.

    A rank 0 that dies after a step may not have noted it, though others have committed it.
    """
    expected = reference(steps)
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    noted = {note[0] for note in notes}
    assert noted <= set(range(1, steps + 1))
    assert len(noted) >= steps - deaths
    for step, loss, norm, *_ in notes:
        assert (loss, norm) == pytest.approx(expected[step - 1], rel=1e-10), step


@pytest.mark.parametrize("death", long_too(("operation", 0), long=VICTIMS), ids=str)
def test_a_death_in_any_phase_changes_no_result(tmp_path, death):
    phase, victim = death
    deaths = [[phase, victim]]
    if phase == "reset":  # which another death brings about
        deaths.append(["step", (victim + 1) % 3])
    flags = ["-np", "3", "-H", "localhost:3"]
    words, log = training(tmp_path, flags, deaths, STEPS, 0.005)
    with start(tmp_path, words) as launcher:
        ended = launcher.wait()
    # Whoever dies when its work is done has failed all the same.
    assert ended.status == (1 if phase in ("return", "end") else 0), ended
    check(log, STEPS, len(deaths))


def ranks_of(launcher: Launcher) -> list[psutil.Process]:
    """The job's processes that run the program."""
    found = []
    for process in psutil.Process(launcher.process.pid).children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if command[1:2] == [str(PROGRAM)]:
            found.append(process)
    return found


@pytest.mark.long
def test_many_random_deaths_change_no_result(tmp_path):
    """The losses and parameters of every step are those of a process that nobody disturbs."""
    kills = 100 if EVERY else 20
    steps = 60 * kills
    choose = random.Random(4)
    # A slot where three die soon is used no more: there are slots for all of them.
    slots = f"localhost:{6 + kills}"
    flags = ["-np", "4", "--max-np", "4", "-H", slots, "--spares", "2"]
    words, log = training(tmp_path, flags, [], steps, 0.005)
    with start(tmp_path, words) as launcher:
        for _ in range(kills):
            seen = log.stat().st_size
            deadline = time.monotonic() + 60
            while log.stat().st_size < seen + 500:  # some steps more, by whoever is left
                assert launcher.process.poll() is None, launcher.output(1)
                assert time.monotonic() < deadline, launcher.output(1)
                time.sleep(0.02)
            time.sleep(choose.random() / 10)
            for victim in choose.sample(ranks_of(launcher), choose.choice((1, 1, 1, 2))):
                victim.send_signal(signal.SIGKILL)
        launcher.process.wait(240)  # the steps that are left
        ended = launcher.wait()
    assert ended.status == 0, ended
    check(log, steps, 2 * kills)
