"""`hvdtune timeline summary` and `hvdtune timeline check`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.recordings.synthetic_capture import Job, write_capture

from hvdtune.cli.main import main

HOROVOD = Path(__file__).parents[1] / "data" / "horovod-timeline.json"


def test_summary_begins_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "summary", str(HOROVOD), "--rows", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{HOROVOD}: 161.73 ms, 346 events, 28 operations on 10 tensors")
    assert lines[2].startswith("Verdict: ranks wait for each other during 23.18 ms")
    assert "a start proves nothing about a rank" in lines[2]
    ranks = lines.index("Who was late")
    assert lines[ranks + 2].split()[0] == "1"
    assert lines[ranks + 3] == ""  # --rows 1
    assert any(line.split()[:2] == ["GLOO_ALLREDUCE", "24"] for line in lines)


def test_check_reports_flaws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "check", str(HOROVOD)]) == 1
    assert "An end without a begin in the row of 'barrier.noname'" in capsys.readouterr().out


def test_check_of_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sound.json"
    path.write_text('[{"ph": "B", "name": "A", "ts": 1, "pid": 1},{"ph": "E", "ts": 2, "pid": 1}]')
    assert main(["timeline", "check", str(path)]) == 0
    assert "sound. 2 events, 0 tensors, 1 spans, 0 ticks" in capsys.readouterr().out


def test_check_of_a_cut_off_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(HOROVOD.read_bytes()[:-5])
    assert main(["timeline", "check", str(path)]) == 1
    assert "cut off" in capsys.readouterr().out


def test_what_was_made_for_viewers_is_sound_and_no_summary_is_made_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_capture(Job(ranks=2, steps=5), tmp_path)
    part = str(tmp_path / "part.json")
    assert main(["timeline", "view", str(tmp_path / "t.json"), "-o", part]) == 0
    assert main(["timeline", "check", part]) == 0
    capsys.readouterr()
    assert main(["timeline", "summary", part]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "give hvdtune report the recording itself" in shown.err


@pytest.mark.parametrize("verb", ["summary", "check"])
def test_mistakes_get_one_sentence(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.json"
    assert main(["timeline", verb, str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    shutil.copy(__file__, path)
    assert main(["timeline", verb, str(path)]) == 2
    assert "is not a timeline" in capsys.readouterr().err


RECORDED = ["a/t.json"]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["timeline"], 2, "give a command: summary, check, merge, view, start or stop"),
        (
            ["timeline", "check", "a"],
            2,
            "a is a folder: give rank 0's file in it, such as a/t.json",
        ),
        (
            ["timeline", "merge", "a"],
            2,
            "a is a folder: give rank 0's file in it, such as a/t.json",
        ),
        (["report", "empty"], 2, "a folder: give rank 0's file in it, such as empty/t.json"),
        (["diff", *RECORDED, "a"], 2, "a is a folder: give rank 0's file in it, such as a/t.json"),
        (["diff", *RECORDED, "none.json"], 1, "none.json: No such file or directory."),
        (["diff", *RECORDED, "h.json"], 2, "h.json is not a recording made by hvdtune: only such"),
        (["timeline", "view", *RECORDED, "-o", *RECORDED], 2, "would replace an input file"),
        (
            ["timeline", "view", *RECORDED, "-o", "a"],
            2,
            "-o a is a folder: give the name of a file",
        ),
        (["timeline", "view", *RECORDED, "-o", "b/o.json"], 2, "written: there is no folder b"),
        (["timeline", "merge", *RECORDED, "-o", "b/o.json"], 2, "written: there is no folder b"),
        (["report", *RECORDED, "-o", "b/o.html"], 2, "written: there is no folder b"),
        (["report", *RECORDED, "-o", "a"], 2, "--output a is a folder: give the name of a file"),
        (["timeline", "merge", *RECORDED, "h.json", "-o", "h.json"], 2, "would replace an input"),
        (["timeline", "merge", *RECORDED, "zero.json", "-o", "o"], 2, "zero.json is empty"),
    ],
)
def test_files_that_are_not_what_is_meant(
    words: list[str], status: int, told: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One sentence; and nothing is touched."""
    for folder in ("a", "empty"):
        (tmp_path / folder).mkdir()
    write_capture(Job(ranks=2, steps=2), tmp_path / "a")
    shutil.copy(HOROVOD, tmp_path / "h.json")
    (tmp_path / "zero.json").touch()
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert main(words) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert told in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the one beside it that is written first."""
    write_capture(Job(ranks=1, steps=2), tmp_path)
    target = tmp_path / ("x" * 250)
    assert main(["timeline", "view", str(tmp_path / "t.json"), "-o", str(target)]) == 1
    assert capsys.readouterr().err == f"hvdtune timeline: {target}: File name too long.\n"
