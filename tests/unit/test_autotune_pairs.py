"""The comparisons of a run: what leads to one, what it says, and that no run has more pairs."""

import pytest
from test_autotune_tuner import (
    DEFAULTS,
    FAST,
    MS,
    OTHER,
    SPACE,
    STEPS,
    Measure,
    changed,
    drive,
    phases,
    proposing,
    sample,
    taking,
    tried,
)

from hvdtune.autotune.search.tuner import COMPARABLE, LEAST_TURNS, Trial, Tuner, TunerConfig
from hvdtune.autotune.statistics.comparison import LOOKS, REPEATS
from hvdtune.autotune.statistics.score import Sample


def lucky_in_the_search(ms: float) -> Measure:
    """The defaults look far better there; in pairs they take as long as all others."""
    fast, usual = taking([(DEFAULTS, ms)], 0.0005), taking([], 0.0005)
    return lambda trial: (fast if trial.phase == "search" else usual)(trial)


# -- pairs --


def test_visits_between_two_looks_are_one_sample_of_each_settings() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4))
    # Too rough for the first look, clear at the second.
    quiet, rough = taking([(FAST, 9.4)], 0.002), taking([(FAST, 9.4)], 0.02)
    told = []

    def measure(trial: Trial) -> Sample:
        if trial.phase != "confirm":
            return quiet(trial)
        told.append(phases(tuner).count("confirm"))
        return rough(trial)

    drive(tuner, measure)
    assert told == [0] * 2 * LOOKS[0] + [2] * 2 * (LOOKS[1] - LOOKS[0])
    rows = [one for one in tuner.history if one.trial.phase == "confirm"]
    assert [one.trial.candidate for one in rows] == [True, False, True, False]
    assert [one.sample.steps // STEPS for one in rows] == [LOOKS[0]] * 2 + [LOOKS[1] - LOOKS[0]] * 2
    assert [one.trial.note for one in rows] == [
        *["pairs 1 to 6 of at most 56"] * 2,
        *["pairs 7 to 18 of at most 56"] * 2,
    ]


@pytest.mark.parametrize("first", [1, LOOKS[0]])
def test_a_disturbed_pair_is_measured_again(first: int) -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4))
    usual, compared = taking([(FAST, 9.4)], 0.002), []

    def measure(trial: Trial) -> Sample:
        if trial.phase == "confirm" and trial.candidate:
            compared.append(trial)
            if first <= len(compared) < first + 2:
                return sample(30.0, 0.3)
        return usual(trial)

    visited = drive(tuner, measure)
    assert tuner.outcome is not None
    assert tuner.outcome.adopted
    assert phases(tuner).count("confirm") == 2
    assert [trial.phase for trial in visited].count("confirm") == 2 * (LOOKS[0] + 2)


def test_disturbances_that_keep_coming_are_held_against_the_candidate() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4))
    usual, compared = taking([(FAST, 9.4)], 0.002), []

    def measure(trial: Trial) -> Sample:
        if trial.phase == "confirm" and trial.candidate:
            compared.append(trial)
            if len(compared) % 2:
                return sample(30.0, 0.3)
        return usual(trial)

    drive(tuner, measure)
    assert tuner.outcome is not None
    assert not tuner.outcome.adopted


@pytest.mark.parametrize(("most", "pairs"), [(24, 6), (25, 18)])
def test_pairs_of_an_abandoned_comparison_count_with_those_measured_again(
    most: int, pairs: int
) -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4, max_pairs=most))
    tuner.recall(OTHER)
    usual, verified = taking([(FAST, 9.4)], 0.0005), []

    def measure(trial: Trial) -> Sample:
        if trial.phase == "verify" and trial.candidate:
            verified.append(trial)
            return sample(10.0, 0.3, abandoned=len(verified) == REPEATS + 1)
        return usual(trial)

    drive(tuner, measure)
    assert len(verified) == REPEATS + 1
    # Three of the pairs were measured again and one was not ended; three may be disturbed again.
    notes = [one.trial.note for one in tuner.history if one.trial.phase == "confirm"]
    assert notes[0] == f"pairs 1 to 6 of at most {pairs}"
    assert tuner.outcome is not None
    assert tuner.outcome.values == FAST


@pytest.mark.parametrize(
    ("most", "disturbed"),
    [(COMPARABLE, 0), (LOOKS[0] + COMPARABLE - 1, 0), (LOOKS[0] + COMPARABLE + 1, 2)],
)
def test_no_comparison_where_too_few_pairs_are_left_for_one(most: int, disturbed: int) -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8, max_pairs=most))
    lucky, rough = lucky_in_the_search(5.0), []

    def measure(trial: Trial) -> Sample:
        if trial.phase == "confirm" and trial.candidate and len(rough) < disturbed:
            rough.append(trial)
            return sample(10.0, 0.3)
        return lucky(trial)

    visited = drive(tuner, measure, proposing(FAST, deviation=0.02))
    used = LOOKS[0] + disturbed
    assert [trial.phase for trial in visited].count("confirm") == 2 * used
    # Nor is anything measured that could not be compared any more.
    assert visited[-1].phase == "confirm"
    assert tuner.outcome is not None
    assert tuner.outcome.values == OTHER
    assert tuner.outcome.verdict == f"no comparison: {used} of the {most} pairs were used up before"


def test_one_pair_more_and_the_search_goes_on() -> None:
    most = LOOKS[0] + COMPARABLE
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8, max_pairs=most))
    drive(tuner, lucky_in_the_search(5.0))
    assert tuner.searched == 5


@pytest.mark.parametrize("most", [9, 33])
def test_pairs_measured_again_count_as_pairs(most: int) -> None:
    """So that a run on a rough machine is no longer than on another."""
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8, max_pairs=most))
    usual, compared = taking([(FAST, 9.9)], 0.02), []

    def measure(trial: Trial) -> Sample:
        one = usual(trial)
        if trial.phase == "confirm":
            compared.append(trial)
            # Every fourth sample of a comparison, so that roughness is not what is usual.
            if len(compared) % 4 == 0:
                return sample(one.step_time_ms, 0.1)
        return one

    drive(tuner, measure, proposing(FAST, deviation=0.02))
    assert len(compared) >= 4
    assert len(compared) <= 2 * most


# -- remembered settings --


@pytest.mark.parametrize(
    ("ms", "noise", "course", "adopted"),
    [
        (9.0, 0.002, {"verify"}, True),  # still faster
        (12.0, 0.0002, {"verify", "search"}, False),  # slower by now: abandoned, and searched anew
        (10.0, 0.0002, {"verify", "search"}, False),  # no faster by now: searched anew
        (10.0, 0.05, {"verify"}, False),  # nobody can tell: a search could not, either
    ],
)
def test_remembered_settings_are_verified_before_any_search(
    ms: float, noise: float, course: set[str], adopted: bool
) -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(warmup_samples=1, max_samples=4))
    tuner.recall(OTHER)
    usual = taking([(OTHER, ms)], noise, noise)

    def measure(trial: Trial) -> Sample:
        one = usual(trial)
        is_bad = tuner.hopeless([int(one.step_time_ms * MS)] * 2, one)
        return sample(ms, abandoned=True) if is_bad else one

    drive(tuner, measure, proposing(FAST, gain=0.0))
    assert phases(tuner)[:3] == ["warmup", "baseline", "verify"]
    assert set(phases(tuner)[2:]) == course
    assert tuner.outcome is not None
    assert (tuner.outcome.adopted, tuner.outcome.values) == (
        adopted,
        OTHER if adopted else DEFAULTS,
    )


def test_refuted_settings_are_not_searched_anew_without_pairs_to_compare_with() -> None:
    most = LOOKS[0] + COMPARABLE - 1
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4, max_pairs=most))
    tuner.recall(OTHER)
    drive(tuner, taking([], 0.0002))
    assert set(phases(tuner)) == {"warmup", "baseline", "verify"}
    assert tuner.outcome is not None
    assert tuner.outcome.verdict.startswith("no significant gain (")
    assert "in 6 pairs" in tuner.outcome.verdict


# -- promotion --


def test_a_far_better_candidate_is_the_incumbent_at_once() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=20))
    visited = drive(tuner, taking([(DEFAULTS, 6.0), (FAST, 5.4)], 0.002))
    measured = [(trial.phase, trial.candidate) for trial in visited]
    # The defaults are the first candidate, and compared before anything else is tried.
    first = measured.index(("confirm", True))
    assert [trial.values for trial in visited[4:first]] == [OTHER, DEFAULTS] * 2 + [OTHER]
    assert visited[first].values == DEFAULTS
    after = visited[first + 2 * LOOKS[0] :]
    assert after[0] == Trial("search", DEFAULTS, note="incumbent", visit=True)
    assert all(trial.values != OTHER for trial in after)
    assert tuner.incumbent == OTHER
    assert tuner.outcome is not None
    assert tuner.outcome.values == FAST
    assert tuner.outcome.gain == pytest.approx(0.46, abs=0.01)


def test_probes_after_a_promotion_are_changes_of_the_new_incumbent() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=20))
    found = tried(drive(tuner, taking([(OTHER, 20.0)], 0.001)))
    assert found[0] == [DEFAULTS]
    probes = SPACE.probes(DEFAULTS, 3, 0)
    assert [*found[1], *found[2]] == [{**DEFAULTS, **probe} for probe in probes[:6]]
    assert all(len(changed(values, DEFAULTS)) == 1 for values in found[1])
    assert tuner.outcome is not None
    assert tuner.outcome.values == DEFAULTS


@pytest.mark.parametrize(
    ("ms", "error", "at_once"), [(8.5, 0.002, True), (8.5, 0.04, False), (9.2, 0.002, False)]
)
def test_a_gain_is_only_far_better_beyond_its_error(ms: float, error: float, at_once: bool) -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8))
    visited = drive(tuner, taking([(DEFAULTS, ms)], 0.0005, error))
    # The warm-up, the baseline, the first visit of the incumbent, and two for each turn.
    behind = visited[4 + 1 + 2 * LEAST_TURNS]
    assert (behind.phase == "confirm") == at_once


def test_a_confirmed_candidate_stays_when_nothing_better_follows() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8))
    drive(tuner, taking([(DEFAULTS, 6.0), (FAST, 6.1)], 0.002))
    assert tuner.outcome is not None
    assert tuner.outcome.adopted
    assert tuner.outcome.values == DEFAULTS


def test_a_search_that_goes_on_behind_a_comparison_has_no_outcome_yet() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8))
    lucky, behind = lucky_in_the_search(5.0), []

    def measure(trial: Trial) -> Sample:
        if trial.phase == "search" and "confirm" in phases(tuner):
            behind.append(tuner.outcome)
        return lucky(trial)

    drive(tuner, measure)
    assert len(behind) > 4
    assert set(behind) == {None}


# -- the limit of harm --


def test_no_comparison_when_slow_candidates_have_used_up_the_limit() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(harm_limit_steps=25))

    def measure(trial: Trial) -> Sample:
        # No step seen is never a reason to end a sample.
        assert not tuner.hopeless([], None)
        if trial.values["cycle_time"] != DEFAULTS["cycle_time"]:
            return sample(9.4)
        return sample(30.0 if trial.candidate else 10.0)

    drive(tuner, measure)
    assert tuner.outcome is not None
    assert tuner.outcome.values == DEFAULTS
    assert tuner.outcome.verdict == (
        "no comparison: slow candidates had used up the limit of 25 steps' time"
    )
    assert "confirm" not in phases(tuner)


def test_a_comparison_that_reaches_the_limit_says_so() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4, harm_limit_steps=5))

    def measure(trial: Trial) -> Sample:
        is_slow = trial.phase == "confirm" and trial.candidate
        ms = 20.0 if is_slow else 9.4 if trial.values == FAST else 10.0
        is_bad = tuner.hopeless([int(ms * MS)] * 10, sample(ms))
        assert is_bad == tuner.at_limit == is_slow
        return sample(ms, abandoned=is_bad)

    drive(tuner, measure)
    assert tuner.outcome is not None
    assert tuner.outcome.verdict == (
        "no significant gain: slow candidates had used up the limit of 5 steps' time"
    )
    assert [one.at_limit for one in tuner.history if one.trial.phase == "confirm"] == [True]
