"""The command line of `hvdtune tune`: what is refused, in one sentence."""

from __future__ import annotations

import pytest

from hvdtune.cli.main import main
from hvdtune.cli.tune import _duration


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


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("7", 7)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert _duration(text) == seconds
