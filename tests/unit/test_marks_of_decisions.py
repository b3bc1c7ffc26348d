"""What hvdtune has decided by itself stands in the recordings that run, and in those to come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hvdtune.core import world
from hvdtune.core.observation import marks


class Engine:
    """Keeps marks while it records."""

    def __init__(self) -> None:
        self.records = False
        self.texts: list[str] = []

    def takes_records(self) -> bool:
        return self.records

    def mark(self, kind: int, value: int, text: str) -> None:
        assert (kind, value) == (marks.AUTOTUNE, 0)
        if self.records:
            self.texts.append(text)

    def mark_step(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(world.running, "engine", made)
    yield made
    marks.forget_decision()


def test_each_recording_has_it_once(engine: Engine) -> None:
    engine.records = True
    marks.record_decision("tried")
    marks.record_decision("kept")
    for _ in range(3):
        marks.step_ended(engine)
    assert engine.texts == ["tried", "kept"]
    engine.records = False
    marks.step_ended(engine)
    engine.records = True
    for _ in range(3):
        marks.step_ended(engine)
    assert engine.texts == ["tried", "kept", "kept"]


def test_a_recording_that_begins_later_has_the_last(engine: Engine) -> None:
    marks.record_decision("tried")
    marks.record_decision("kept")
    marks.step_ended(engine)
    engine.records = True
    marks.step_ended(engine)
    assert engine.texts == ["kept"]


def test_another_job_knows_nothing_of_it(engine: Engine) -> None:
    marks.record_decision("kept")
    marks.forget_decision()
    engine.records = True
    marks.step_ended(engine)
    assert engine.texts == []
