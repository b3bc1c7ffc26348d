"""The pairs of a run: what is left of them goes to a second look, and no run has more."""

import pytest
from simulated_training import MIB, full_space
from test_autotune_tuner import FAST, OTHER, phases, sample, scripted, wobble

from hvdtune.autotune import space
from hvdtune.autotune.comparison import LOOKS as CONFIRM_LOOKS
from hvdtune.autotune.space import Values
from hvdtune.autotune.tuner import Answer, Tuner, TunerConfig

SPACE = full_space()
DEFAULTS = space.shipped_defaults(SPACE)
SECOND = {"fusion_threshold": 64 * MIB, "cycle_time": 0.2, "chunk_size": 0}


def two_looks(
    first_ms: float,
    second_ms: float,
    paired_ms: float | None = None,
    gain: float = 0.05,
    most: int = 34,
    late: bool = False,
) -> tuple[Tuner, list[Values]]:
    """A course in which FAST looks good in the search, and SECOND is proposed after the pairs.

    In pairs FAST takes `first_ms`, SECOND `paired_ms` (or what it took before, `second_ms`). If
    the optimiser is `late`, every answer is waited for.
    """
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=8, max_pairs=most))
    jitter = wobble(0.0005)
    compared: list[Values] = []
    open_request = None
    while tuner.trial is not None:
        trial = tuner.trial
        ms = {tuple(FAST.values()): 9.5, tuple(SECOND.values()): second_ms}.get(
            tuple(trial.values.values()), 10.0
        )
        if trial.phase == "confirm" and trial.candidate:
            ms = first_ms if trial.values == FAST else paired_ms or second_ms
            if trial.values not in compared:
                compared.append(trial.values)
        if not trial.waiting:
            tuner.report(sample(ms * (1 + next(jitter))))
        open_request = tuner.take_request() or open_request
        if open_request is not None and not (late and tuner.trial and not tuner.trial.waiting):
            means = [row["y"] for row in open_request.observations]
            open_request = None
            tuner.offer(
                Answer(
                    SECOND if compared else FAST,
                    gain if compared else 0.05,
                    means,
                    [0.001] * len(means),
                )
            )
    return tuner, compared


def test_pairs_that_are_left_go_to_a_second_candidate() -> None:
    tuner, compared = two_looks(first_ms=10.1, second_ms=9.0)
    assert compared == [FAST, SECOND]
    assert tuner.outcome is not None
    assert tuner.outcome.adopted
    assert tuner.outcome.values == SECOND
    assert tuner.outcome.gain == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_the_second_look_begins_with_what_the_search_had_no_room_for(gain: float) -> None:
    tuner, _ = two_looks(first_ms=9.5, second_ms=9.6, gain=gain)
    candidates = [one for one in tuner.history if one.trial.candidate]
    compared_at = max(one.number for one in candidates if one.trial.phase == "confirm")
    before = [one.trial.values for one in candidates if one.number < compared_at]
    later = [one.trial.values for one in candidates if one.number > compared_at]
    probes = SPACE.probes(DEFAULTS, 3, 0)
    assert len(probes) == 7
    assert all({**DEFAULTS, **probe} in before for probe in probes[:4])
    # They are changes of what is in force by then; also where the model is content.
    assert later[:3] == [{**FAST, **probe} for probe in probes[4:]]
    assert later[3:] == ([SECOND] if gain else [])


def test_the_second_look_leaves_enough_for_its_comparison() -> None:
    # The first comparison takes 4 pairs. Of 23, four are left for candidates: three probes, SECOND.
    tuner, compared = two_looks(first_ms=10.4, second_ms=9.0, most=23)
    assert compared == [FAST, SECOND]
    assert tuner.outcome is not None
    assert tuner.outcome.values == SECOND
    assert len(two_looks(first_ms=10.4, second_ms=9.0, most=22)[1]) == 1


def test_the_second_look_measures_the_incumbent_again_when_it_has_waited() -> None:
    def before_second(late: bool) -> list[bool]:
        tuner, compared = two_looks(first_ms=10.4, second_ms=9.0, late=late)
        assert compared == [FAST, SECOND]
        at = next(
            index
            for index, one in enumerate(tuner.history)
            if one.trial.values == SECOND and one.trial.phase == "search"
        )
        assert [one.trial.phase for one in tuner.history[at - 3 : at]] == ["search"] * 3
        return [one.trial.candidate for one in tuner.history[at - 3 : at]]

    assert before_second(late=False) == [False, True, False]
    # The candidate's neighbour must not be as old as the wait was long.
    assert before_second(late=True) == [True, False, False]


def test_pairs_of_an_abandoned_comparison_count_with_those_measured_again() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4, max_pairs=16))
    tuner.recall(OTHER)
    jitter, verified = wobble(0.0005), 0
    while tuner.trial is not None:
        trial, error, is_bad = tuner.trial, 0.002, False
        if trial.phase == "verify" and trial.candidate:
            verified += 1
            error, is_bad = 0.3, verified == 4
        ms = 9.0 if trial.values == FAST else 10.0
        tuner.report(sample(ms * (1 + next(jitter)), error, abandoned=is_bad))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))
    assert verified == 4
    # Three of the pairs were measured again and one was not ended; three may be disturbed again.
    notes = [one.trial.note for one in tuner.history if one.trial.phase == "confirm"]
    assert notes[0] == "pair 1 of at most 8"
    assert tuner.outcome is not None
    assert tuner.outcome.values == FAST


@pytest.mark.parametrize("most", [7, 10])
def test_no_comparison_where_too_few_pairs_are_left_for_one(most: int) -> None:
    # The defaults look far better, and are not.
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8, max_pairs=most))
    jitter = wobble(0.0005)
    outcomes = []
    while tuner.trial is not None:
        lucky = tuner.trial.values == DEFAULTS and tuner.trial.phase == "search"
        tuner.report(sample((5.0 if lucky else 10.0) * (1 + next(jitter))))
        outcomes.append(tuner.outcome)
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] - 0.05 for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))
    assert phases(tuner).count("confirm") == 2 * CONFIRM_LOOKS[0]
    # Nor is anything measured that could not be compared any more.
    assert phases(tuner)[-1] == "confirm"
    assert tuner.outcome is not None
    assert tuner.outcome.values == OTHER
    assert tuner.outcome.verdict == f"no comparison: 4 of the {most} pairs were used up before"


def test_a_search_that_goes_on_behind_a_comparison_has_no_outcome_yet() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8))
    jitter = wobble(0.0005)
    behind = []
    while tuner.trial is not None:
        lucky = tuner.trial.values == DEFAULTS and tuner.trial.phase == "search"
        if tuner.searched < 8 and "confirm" in phases(tuner) and tuner.trial.phase == "search":
            behind.append(tuner.outcome)
        tuner.report(sample((5.0 if lucky else 10.0) * (1 + next(jitter))))
        request = tuner.take_request()
        if request is not None:
            means = [0.0 for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))
    assert len(behind) > 4
    assert set(behind) == {None}


def test_refuted_settings_are_not_searched_anew_without_pairs_to_compare_with() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4, max_pairs=8))
    tuner.recall(OTHER)
    scripted(tuner, {}, wobble(0.0002))
    assert set(phases(tuner)) == {"warmup", "baseline", "verify"}
    assert tuner.outcome is not None
    assert tuner.outcome.verdict.startswith("no significant gain (")
    assert "in 4 pairs" in tuner.outcome.verdict


@pytest.mark.parametrize("most", [9, 33])
def test_pairs_measured_again_count_as_pairs(most: int) -> None:
    """So that a run on a rough machine is no longer than on another."""
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8, max_pairs=most))
    jitter, rough, again = wobble(0.02), 0, 0
    while tuner.trial is not None:
        is_compared = tuner.trial.phase == "confirm"
        rough += is_compared
        # Every fourth sample of a comparison, so that roughness is not what is usual.
        error = 0.1 if is_compared and rough % 4 == 0 else 0.002
        again += error == 0.1
        tuner.report(sample(10.0 * (1 + next(jitter)), error))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] - 0.01 for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.02] * len(means)))
    assert again >= 1
    assert phases(tuner).count("confirm") <= 2 * most


def test_a_second_candidate_has_to_beat_the_one_adopted_first() -> None:
    tuner, compared = two_looks(first_ms=9.5, second_ms=9.0)
    assert compared == [FAST, SECOND]
    assert tuner.outcome is not None
    assert tuner.outcome.values == SECOND
    assert tuner.outcome.gain == pytest.approx(0.1, abs=0.01)
    # In the second comparison the first winner is the incumbent.
    assert tuner.history[-1].trial.values in (FAST, SECOND)
    tuner, compared = two_looks(first_ms=9.5, second_ms=9.6)
    assert compared == [FAST]
    assert tuner.outcome is not None
    assert tuner.outcome.values == FAST


@pytest.mark.parametrize(("gain", "most"), [(0.0, 34), (0.05, 15)])
def test_no_second_look_where_nothing_is_expected_or_few_pairs_are_left(
    gain: float, most: int
) -> None:
    tuner, compared = two_looks(first_ms=10.1, second_ms=9.0, gain=gain, most=most)
    assert compared == [FAST]
    assert tuner.outcome is not None
    assert not tuner.outcome.adopted
    assert tuner.outcome.values == DEFAULTS


def test_of_two_comparisons_without_a_gain_the_surer_one_is_told() -> None:
    tuner, compared = two_looks(first_ms=10.0, second_ms=9.0, paired_ms=10.4)
    assert compared == [FAST, SECOND]
    assert tuner.outcome is not None
    assert not tuner.outcome.adopted
    # The second was seen to be slower after few pairs, which says less about the first.
    alone, compared = two_looks(first_ms=10.0, second_ms=10.4)
    assert compared == [FAST]
    assert alone.outcome is not None
    assert tuner.outcome.verdict == alone.outcome.verdict
