"""How a recording is finished when the job is over, and which settings go together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hvdtune.core.observation import recording
from hvdtune.core.topology import detect
from hvdtune.settings.knobs import KNOBS, KnobError, from_environ, parse, to_text
from hvdtune.timeline.record.layout import Identity

FINISHER = """
import sys, time
from pathlib import Path

def main(words):
    path = Path(words[0])
    behaviour = path.stem
    with Path(path.parent, "asked").open("a") as asked:
        asked.write(words[0] + "\\n")
    if behaviour == "fails":
        print("Traceback", file=sys.stderr)
        sys.exit("the disk is full")
    if behaviour == "silent":
        return 3
    if behaviour == "hangs":
        time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a finisher is that does what its file's name says."""
    (tmp_path / "a_finisher.py").write_text(FINISHER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(recording, "_FINISHER", "a_finisher")
    return tmp_path


def asked(folder: Path) -> list[str]:
    try:
        return (folder / "asked").read_text().splitlines()
    except FileNotFoundError:
        return []


def test_where_a_recording_lies_in_words() -> None:
    settings = from_environ({})
    assert recording.files("/a/t.json", settings, 1) == "/a/t.json"
    packed = recording.files("/a/t.json.gz", settings, 1)
    assert packed == "/a/t.json, /a/t.json.gz when the job has ended"
    assert recording.files("/a/t.json", settings, 2) == (
        "/a/t.json, other ranks' to t.rank1.json beside it on their hosts; "
        "joined into /a/t.json when the job has ended"
    )
    assert recording.files("/a/t.json.gz", settings, 8) == (
        "/a/t.json, other ranks' to t.rank1.json … t.rank7.json beside it on their hosts; "
        "joined into /a/t.json.gz when the job has ended"
    )
    alone = from_environ({"HVDTUNE_TIMELINE_ALL_RANKS": "0"})
    assert recording.files("/a/t", alone, 8) == "/a/t"
    horovods = from_environ({"HVDTUNE_TIMELINE_FORMAT": "horovod"})
    assert recording.files("/a/t.json", horovods, 8) == "/a/t.json"


def test_the_finisher_gets_the_file(folder: Path) -> None:
    path = str(folder / "a name with \" and '.json")
    assert recording.run_finisher(path) == ""
    assert asked(folder) == [path]


@pytest.mark.parametrize(
    ("name", "why"), [("fails", "the disk is full"), ("silent", "status 3"), ("hangs", "longer")]
)
def test_what_goes_wrong_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(recording, "_FINISHING_S", 1.0 if name == "hangs" else 60.0)
    problem = recording.run_finisher(str(folder / f"{name}.json"))
    assert why in problem
    assert f"{folder}/{name}.json" in problem
    assert "\n" not in problem


def test_without_a_finisher_nothing_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_FINISHER", "there_is_no_such_module")
    assert recording.run_finisher(str(folder / "t.json")) == ""


class Engine:
    """An engine after its shutdown."""

    def __init__(self, *files: str) -> None:
        self.files = list(files)
        self.waited = 0

    def recorded(self) -> list[str]:
        return self.files

    def await_recordings(self, timeout_s: float) -> bool:
        self.waited += timeout_s > 0
        return True


def test_every_recording_of_a_job_is_finished(folder: Path) -> None:
    files = [str(folder / "1.json"), str(folder / "2.json.gz")]
    engine = Engine(*files)
    recording.finish(engine, 0)  # type: ignore[arg-type]
    assert engine.waited == 1
    assert asked(folder) == files


def test_a_job_without_a_recording_waits_for_nobody(folder: Path) -> None:
    engine = Engine()
    recording.finish(engine, 1)  # type: ignore[arg-type]
    assert engine.waited == 0
    assert asked(folder) == []


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_launcher_finishes_what_a_failed_job_has_left(folder: Path, name: str) -> None:
    environment = {"HOROVOD_TIMELINE": str(folder / name)}
    assert recording.finish_after_failure(environment) == ""
    assert asked(folder) == [], "there is no file"
    (folder / "t.json").touch()
    assert recording.finish_after_failure(environment) == ""
    assert asked(folder) == [str(folder / name)]
    for other in (
        {},
        {"HOROVOD_TIMELINE": "dynamic"},
        {**environment, "HVDTUNE_TIMELINE_FORMAT": "horovod"},
    ):
        assert recording.finish_after_failure(other) == ""
    assert len(asked(folder)) == 1


def test_horovods_layout_has_no_window_of_steps() -> None:
    environ = {"HVDTUNE_TIMELINE_STEPS": "3:5", "HVDTUNE_TIMELINE_FORMAT": "horovod"}
    with pytest.raises(ValueError, match="HVDTUNE_TIMELINE_STEPS needs"):
        recording.check(from_environ(environ))
    recording.check(from_environ({"HVDTUNE_TIMELINE_STEPS": "3:5"}))


@pytest.mark.parametrize(
    ("text", "steps"), [("100:120", (100, 120)), (" 7: ", (7, 0)), ("1:2", (1, 2))]
)
def test_windows_of_steps(text: str, steps: tuple[int, int]) -> None:
    knob = KNOBS["timeline_steps"]
    assert parse(knob, text, knob.env) == steps
    assert parse(knob, to_text(knob, steps), knob.env) == steps


@pytest.mark.parametrize("text", ["100", ":5", "5:5", "9:3", "0:4", "-1:4", "a:b", "1:2:3", "620"])
def test_what_is_no_window_is_refused(text: str) -> None:
    knob = KNOBS["timeline_steps"]
    with pytest.raises(KnobError, match="such as 100:120"):
        parse(knob, text, knob.env)


def test_the_identity_tells_no_secrets() -> None:
    settings = from_environ({"HVDTUNE_SECRET": "hush", "HOROVOD_CYCLE_TIME": "7"})
    text = recording.options(detect({}), settings, "a host")["timeline_identity"]
    assert "hush" not in text
    assert '"HOROVOD_CYCLE_TIME": 7.0' in text
    assert '"host": "a host"' in text


FACES = ("torch", "tensorflow", "jax", "mxnet", "keras")


@pytest.mark.parametrize(
    ("imported", "named"),
    [
        (("torch", "hvdtune.torch"), "torch 2.13.0"),
        (("mxnet", "hvdtune.mxnet", "torch"), "mxnet 2.13.0"),
        (("jax", "hvdtune.jax", "torch"), "jax 2.13.0"),
        (("jax", "keras", "hvdtune.keras.package"), "keras 2.13.0, jax 2.13.0"),
        (
            ("tensorflow", "torch", "hvdtune.tensorflow", "hvdtune.torch"),
            "torch 2.13.0, tensorflow 2.13.0",
        ),
        (("torch", "tensorflow"), "numpy"),
    ],
)
def test_the_identity_names_the_faces_that_the_program_uses(
    monkeypatch: pytest.MonkeyPatch, imported: tuple[str, ...], named: str
) -> None:
    """Not what else it has imported. Here every package is of version 2.13.0."""
    for face in FACES:
        for module in (face, f"hvdtune.{face}", f"hvdtune.{face}.package"):
            monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(np, "__version__", "")
    for name in imported:
        module = ModuleType(name)
        vars(module).update(__version__="2.13.0", backend_name=lambda: "jax")
        module.__dict__["keras"] = module
        monkeypatch.setitem(sys.modules, name, module)
    text = recording.options(detect({}), from_environ({}), "a host")["timeline_identity"]
    framework = json.loads("{" + text + "}")["framework"]
    assert framework == named
    identity = Identity("job", 0, 1, 0, "a host", 1, "0", framework=framework)
    assert identity.faces == {part.split()[0] for part in named.split(", ")}


def test_a_recording_of_an_earlier_version_may_name_no_face() -> None:
    assert not Identity("job", 0, 1, 0, "a host", 1, "0").faces
