"""The command line of `hvdtune tune`: what is refused, in one sentence."""

from __future__ import annotations

import argparse
import io
import sys

import pytest

from hvdtune.autotune.session.offline import JobsEnded
from hvdtune.cli import tune
from hvdtune.cli.main import main
from hvdtune.settings import knobs


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-np", "2"], "give the command to run: hvdtune tune -np 2 -- python train.py"),
        (["-np", "2", "--workload", "tiny", "--", "x"], "give a command or --workload, not both"),
        (["-np", "2", "--workload", "alexnet"], "give one of resnet50, vgg16"),
        (["-np", "2", "--budget", "soon", "x"], "'soon' is not accepted: give a time: 90s, 10m"),
        (["-np", "2", "--budget", "0s", "x"], "'0s' is not accepted"),
        (["-np", "2", "--skip-steps", "-1", "x"], "give a whole number, 0 or more"),
        (["-np", "0", "x"], "give a whole number, 1 or more"),
        (["x"], "-np"),
        (["-np", "2", "--cycle-time-ms", "-1", "x"], "from 0 to 10000"),
        (["-np", "2", "--config-file", "/missing", "x"], "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["tune", *words])
    except SystemExit as exit:
        status = int(exit.code or 0)
    assert status == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_the_job_gets_the_users_settings_but_no_tuner_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HVDTUNE_AUTOTUNE_WATCH", "1")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    flags = ["-np", "2", "--autotune-log-file", "l.csv", "--autotune-store", "s.json"]
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    args = parser.parse_args([*flags, "--autotune-start", "chunk_size=65536", "--", "x"])
    environ, settings = tune._settings(args)
    assert settings.autotune
    assert not settings.autotune_watch
    assert (settings.autotune_log, settings.autotune_store) == ("l.csv", "s.json")
    assert (settings.chunk_size, settings.is_fixed("chunk_size")) == (65536, False)
    assert settings.is_fixed("cycle_time")
    assert environ["HOROVOD_CYCLE_TIME"] == "3"
    assert not {"HOROVOD_AUTOTUNE_LOG", "HVDTUNE_AUTOTUNE_STORE"} & set(environ)
    # The first start begins where the user says; later ones with what is in force.
    assert environ["HVDTUNE_AUTOTUNE_START"] == "chunk_size=65536"
    restarting = {"cache_capacity": 1024, "nccl_min_ctas": 0, "nccl_max_ctas": 0}
    assert tune._restarting(settings) == restarting
    shared = knobs.from_environ({"HVDTUNE_SHARE_GPU": "1"})
    assert tune._restarting(shared) == {"cache_capacity": 1024}
    assert tune._command(args) == ["x"]


def test_the_job_runs_on_this_machine_also_within_lsf(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(tune.subprocess, "Popen", lambda words, **_: started.append(words))
    tune._start(argparse.Namespace(np=3, show_output=False), ["true"], {}, io.BytesIO(), {})
    (words,) = started
    assert words[words.index("-H") + 1] == "localhost:3"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("7", 7)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert tune._duration(text) == seconds


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class FakeEngine:
    """An engine with nothing to tune, or one whose program fails for the reason `why`."""

    EngineStopped = JobsEnded

    def __init__(self, why: str = "") -> None:
        self.why = why

    def start(self, deadline: float) -> None:
        if self.why:
            raise JobsEnded(self.why)

    def current(self) -> dict[str, float]:
        return {"fusion_threshold": 2**27, "cycle_time": 1.0}

    peek = current


@pytest.mark.parametrize("why", ["", "the program ended with exit status 1"])
def test_messages_do_not_stand_behind_the_bar(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    settings = knobs.from_environ({"HOROVOD_AUTOTUNE": "1", "HVDTUNE_AUTOTUNE_STORE": ""})
    args = argparse.Namespace(np=1, budget=60.0, workload=None)  # one rank: nothing to tune
    if why:
        with pytest.raises(JobsEnded):
            tune._tune(args, FakeEngine(why), settings, ["x"])
        assert terminal.getvalue().endswith("\r\x1b[K")
        return
    assert tune._tune(args, FakeEngine(), settings, ["x"])
    shown = [line.rpartition("\r\x1b[K")[2] for line in terminal.getvalue().split("\n")]
    assert shown[0].startswith("hvdtune autotune: kept the current settings: there is one rank")
