"""benchmarks/soak.py, for some seconds: that it works, finds what is wrong, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(SOAK), *map(str, arguments)]


@pytest.mark.long
def test_pair_of_jobs_is_without_a_difference(tmp_path: Path) -> None:
    """Both jobs run the same programs: their bits are compared."""
    arguments = ("--minutes", 0.05, "--job-seconds", 0.5, "--np", 3, "--seed", 12)
    done = subprocess.run(
        command(*arguments), cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 12" in done.stdout
    assert "operations (" in done.stdout
    assert " 0 differences or hangs" in done.stdout


@pytest.mark.long
def test_interrupted_soak_leaves_nothing(tmp_path: Path) -> None:
    """Ranks, burners and files go with it (conftest.py looks for processes)."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("--np", 2, "--seed", 2), env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith("np 2"):
                break
        job.send_signal(signal.SIGINT)
        assert "interrupted" in job.stdout.read()
    assert not list(tmp_path.iterdir())


def test_differences_are_found() -> None:
    """In the bits of two ranks, and of two jobs with the same programs."""
    code = (
        "import runpy\n"
        f"soak = runpy.run_path({str(SOAK)!r})\n"
        "Outcome = soak['soak'].Outcome\n"
        "known = {(1, 2): 7}\n"
        "outcomes = [Outcome(checksums={(1, 2): 7}), Outcome(checksums={(1, 2): 8})]\n"
        "print(soak['differences'](outcomes, known, 0))\n"
        "known = {(1, 2): 9}\n"
        "print(soak['differences'](outcomes[:1], known, 4))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "rank 1: program 1, operation 2: its bits differ from a lower rank's" in first
    assert (
        "rank 0: program 1, operation 2: its bits differ from those in the job of seed 4" in second
    )


def test_odd_seed_with_several_numbers_of_ranks_is_refused() -> None:
    """Pairs begin with an even seed: it would compare jobs on 2 ranks with jobs on 3."""
    refused = subprocess.run(
        command("--np", 2, 3, "--seed", 13, "--minutes", 0),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert refused.returncode == 2, refused.stdout
    assert "--seed 13 is odd and --np gives several numbers of ranks (2 3)" in refused.stderr
    # A failure's job is run again with its own seed, and number of ranks.
    code = (
        "import runpy\n"
        f"parse = runpy.run_path({str(SOAK)!r})['parse']\n"
        "for words in ('--np 3 --seed 13', '--np 3 3 --seed 13', '--np 2 3 --seed 12', ''):\n"
        "    print(parse(words.split()).seed)\n"
    )
    accepted = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert accepted.stdout.split() == ["13", "13", "12", "None"], accepted.stderr
