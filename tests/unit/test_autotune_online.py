"""The engine as the tuner and the program share it: nobody's change is lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hvdtune.autotune.memory.recall import Found
from hvdtune.autotune.session import online
from hvdtune.autotune.session.online import MOST_HELD, _SharedEngine
from hvdtune.core import tuning, world


class Native:
    """Counts changes, as the engine does."""

    def __init__(self) -> None:
        self.applied: list[dict[str, float]] = []

    def apply(self, values: Mapping[str, float]) -> int:
        self.applied.append(dict(values))
        tuning._changes += 1
        return len(self.applied)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Native:
    made = Native()
    monkeypatch.setattr(tuning, "_apply", made.apply)
    monkeypatch.setattr(tuning, "current", lambda: made.applied[-1])
    return made


def test_a_change_of_the_program_is_not_overwritten(native: Native) -> None:
    engine = _SharedEngine()
    assert engine.apply({"cycle_time": 1.0}) == 1
    assert tuning.apply({"cycle_time": 3.0}) == 2
    # The epoch before: the program's is a later one, by which the tuner hears of it.
    assert engine.apply({"cycle_time": 2.0}) == 1
    assert native.applied[-1] == {"cycle_time": 3.0}


def test_a_change_before_the_tuners_first_is_not_overwritten_either(native: Native) -> None:
    engine = _SharedEngine()
    tuning.apply({"cycle_time": 3.0})
    assert engine.apply({"cycle_time": 2.0}) == 0
    assert native.applied == [{"cycle_time": 3.0}]


def test_who_has_seen_what_is_in_force_may_change_it(native: Native) -> None:
    """A search that a change of the step time starts begins with what the program wanted."""
    engine = _SharedEngine()
    tuning.apply({"cycle_time": 3.0})
    assert engine.current() == {"cycle_time": 3.0}
    assert engine.apply({"cycle_time": 2.0}) == 2
    assert native.applied[-1] == {"cycle_time": 2.0}


def test_what_the_program_has_asked_for_is_known(native: Native) -> None:
    """Its newest values, since this engine began; the tuner's own changes do not count."""
    tuning.apply({"chunk_size": 1.0})
    engine = _SharedEngine()
    engine.apply({"fusion_threshold": 2.0})
    tuning.apply({"cycle_time": 3.0, "one_shot_limit": 0.0})
    tuning.apply({"cycle_time": 4.0})
    assert engine.asked() == {"cycle_time": 4.0, "one_shot_limit": 0.0}
    assert engine.apply({"fusion_threshold": 5.0}) == 5


def test_steps_in_which_overlapping_is_tried_are_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the first, which says what is in force; and not for ever."""
    monkeypatch.setattr(tuning, "read_steps", lambda timeout_s: [1, 2, 3])
    engine = _SharedEngine()
    tuning.hold(True)
    try:
        assert engine.read_steps(0.1) == [1]
        assert engine.read_steps(0.1) == []
        tuning.hold(False)
        assert engine.read_steps(0.1) == [1, 2, 3]
        tuning.hold(True)
        assert [1, 2, 3] in [engine.read_steps(0.1) for _ in range(MOST_HELD)]
    finally:
        tuning.hold(False)


@pytest.mark.parametrize(
    ("size", "is_reformed", "counts"), [(4, False, True), (2, False, False), (2, True, True)]
)
def test_what_was_found_counts_in_an_elastic_job_of_any_size(
    monkeypatch: pytest.MonkeyPatch, size: int, is_reformed: bool, counts: bool
) -> None:
    found = Found({"chunk_size": 1}, "a start before")
    monkeypatch.setattr(online, "_before", online._Before(4, found))
    assert online._found_before(size, is_reformed) is (found if counts else None)


def test_a_rank_keeps_what_is_in_force_for_when_it_is_rank_0(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    native.apply({"cycle_time": 3.0})
    monkeypatch.setattr(online, "_before", None)
    monkeypatch.setattr(world, "size", lambda: 4)
    online.keep_what_is_in_force()
    kept = online._found_before(3, is_reformed=True)
    assert kept is not None
    assert kept.values == {"cycle_time": 3.0}
