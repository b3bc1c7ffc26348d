"""The course of tuning: its phases, its decisions, and the law that it never ends slower."""

import math
from collections.abc import Iterator

import pytest
from simulated_training import (
    LANDSCAPES,
    MIB,
    SimulatedSteps,
    default_is_best,
    flat,
    full_space,
    own_chunk_is_best,
    short_cycle_is_best,
    tune,
)

from hvdtune.autotune import space
from hvdtune.autotune.comparison import LOOKS as CONFIRM_LOOKS
from hvdtune.autotune.score import Sample
from hvdtune.autotune.tuner import Answer, Trial, Tuner, TunerConfig

SPACE = full_space()
DEFAULTS = space.shipped_defaults(SPACE)
OTHER = {"fusion_threshold": 16 * MIB, "cycle_time": 5.0, "chunk_size": 0}
FAST = {"fusion_threshold": 32 * MIB, "cycle_time": 0.5, "chunk_size": 0}


def sample(ms: float, error: float = 0.002, abandoned: bool = False) -> Sample:
    return Sample(10, ms, ms * error, 1e6, 1e3 / ms, abandoned=abandoned)


def scripted(tuner: Tuner, times: dict[tuple[object, ...], float], jitter: Iterator[float]) -> None:
    """Run to the end; the optimiser always proposes FAST and finds what was measured."""
    while tuner.trial is not None:
        ms = times.get(tuple(tuner.trial.values.values()), 10.0)
        tuner.report(sample(ms * (1 + next(jitter))))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))


def wobble(size: float) -> Iterator[float]:
    while True:
        yield from (size, -size, 0.3 * size, -0.6 * size, 0.0)


def phases(tuner: Tuner) -> list[str]:
    return [measurement.trial.phase for measurement in tuner.history]


def test_the_course_without_any_gain() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=8))
    assert tuner.trial == Trial("warmup", DEFAULTS, note="2 remaining")
    scripted(tuner, {tuple(FAST.values()): 10.0}, wobble(0.0005))
    assert phases(tuner)[:4] == ["warmup"] * 3 + ["baseline"]
    assert set(phases(tuner)[4:]) == {"search"}
    assert all(one.trial.values == DEFAULTS for one in tuner.history[:4])
    # Candidates and the incumbent take turns.
    assert [one.trial.candidate for one in tuner.history[4:]] == [True, False] * 8
    assert tuner.outcome is not None
    assert not tuner.outcome.adopted
    assert tuner.outcome.values == DEFAULTS
    assert tuner.outcome.verdict.startswith("no significant gain (")


def test_the_course_with_a_gain() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=6))
    scripted(tuner, {tuple(FAST.values()): 9.0}, wobble(0.002))
    assert tuner.outcome is not None
    assert tuner.outcome.adopted
    assert tuner.outcome.values == FAST
    assert tuner.outcome.gain == pytest.approx(0.1, abs=0.005)
    assert tuner.outcome.margin is not None
    assert tuner.outcome.margin < 0.02
    assert "adopted: 10.0 % ±" in tuner.outcome.verdict
    confirm = [one.trial.candidate for one in tuner.history if one.trial.phase == "confirm"]
    assert confirm == [True, False, False, True] * (CONFIRM_LOOKS[0] // 2)
    assert tuner.trial is None


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_search_of_very_few_samples_asks_with_something_to_go_by(most: int) -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(warmup_samples=0, max_samples=most))
    while tuner.trial is not None:
        if not tuner.trial.waiting:
            tuner.report(sample(10.0))
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            assert count >= 2
            tuner.offer(Answer(FAST, 0.05, [0.0] * count, [0.001] * count))
    assert tuner.searched == most


@pytest.mark.parametrize("asked", [0, 2])
def test_a_search_that_is_to_end_is_followed_by_the_comparison(asked: int) -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=20))
    while tuner.trial is not None:
        if tuner.searched == asked and tuner.trial.phase in ("baseline", "search"):
            tuner.end_search("the time was over")
        if not tuner.trial.waiting:
            tuner.report(sample(9.0 if tuner.trial.candidate else 10.0))
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            assert count >= 2
            tuner.offer(Answer(FAST, 0.05, [0.0] + [-0.1] * (count - 1), [0.001] * count))
    assert tuner.searched in (asked, asked + 1)
    assert tuner.outcome is not None
    assert tuner.outcome.adopted == (tuner.searched > 0)


@pytest.mark.parametrize(
    ("ms", "noise", "course", "adopted"),
    [
        (9.0, 0.002, {"verify"}, True),  # still faster
        (12.0, 0.002, {"verify", "search"}, False),  # slower by now: abandoned, and searched anew
        (10.0, 0.0002, {"verify", "search"}, False),  # no faster by now: searched anew
        (10.0, 0.05, {"verify"}, False),  # nobody can tell: a search could not, either
    ],
)
def test_remembered_settings_are_verified_before_any_search(
    ms: float, noise: float, course: set[str], adopted: bool
) -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(warmup_samples=1, max_samples=4))
    tuner.recall(OTHER)
    jitter = wobble(noise)
    while tuner.trial is not None:
        slow = tuner.trial.values == OTHER
        one = sample((ms if slow else 10.0) * (1 + next(jitter)), noise)
        if tuner.hopeless([int(one.step_time_ms * 1e6)] * 2, one):
            one = sample(ms, abandoned=True)
        tuner.report(one)
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            tuner.offer(Answer(FAST, 0.0, [0.0] * count, [0.001] * count))
    assert phases(tuner)[:3] == ["warmup", "baseline", "verify"]
    assert set(phases(tuner)[2:]) == course
    assert tuner.outcome is not None
    assert (tuner.outcome.adopted, tuner.outcome.values) == (
        adopted,
        OTHER if adopted else DEFAULTS,
    )


def test_the_incumbent_is_measured_first_and_the_defaults_second() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(warmup_samples=0, max_samples=4))
    scripted(tuner, {}, wobble(0.001))
    assert tuner.history[0].trial == Trial("baseline", OTHER)
    assert tuner.history[1].trial.values == DEFAULTS
    assert tuner.incumbent == OTHER


def test_probes_of_single_settings_come_first_then_spread_points() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(warmup_samples=0, max_samples=20))
    scripted(tuner, {}, wobble(0.001))
    tried = [one.trial.values for one in tuner.history if one.trial.candidate]
    assert tried[0] == DEFAULTS
    differing = [[key for key in OTHER if values[key] != OTHER[key]] for values in tried[1:9]]
    assert [keys[0] for keys in differing[:3]] == list(OTHER)
    assert [len(keys) for keys in differing[:5]] == [1] * 5
    assert min(len(keys) for keys in differing[5:]) >= 2
    assert tried[9] == FAST


def test_the_last_word_is_the_comparisons_not_the_searchs() -> None:
    # Fast in the search, nothing in the fresh pairs: a lucky winner.
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=6))
    jitter = wobble(0.002)
    while tuner.trial is not None:
        lucky = tuner.trial.values == FAST and tuner.trial.phase == "search"
        tuner.report(sample((9.0 if lucky else 10.0) * (1 + next(jitter))))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))
    assert phases(tuner)[-1] == "confirm"
    assert tuner.outcome is not None
    assert not tuner.outcome.adopted
    assert "pairs at 99 % confidence" in tuner.outcome.verdict


def test_the_search_ends_when_nothing_more_is_expected() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=20))
    while tuner.trial is not None:
        tuner.report(sample(10.0))
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            tuner.offer(Answer(FAST, 0.0, [0.0] * count, [0.001] * count))
    assert tuner.outcome is not None
    assert tuner.searched < 20
    assert "expects less than 0.2 % more" in tuner.outcome.verdict


def test_slow_candidates_may_cost_only_so_much() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(harm_limit_steps=25))
    while tuner.trial is not None:
        ms = 20.0 if tuner.trial.candidate else 10.0
        tuner.report(sample(ms))
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            tuner.offer(Answer(FAST, 0.1, [0.0] + [0.5] * (count - 1), [0.01] * count))
    # Ten steps a sample that each take one step's time more: the limit is passed at the third.
    assert tuner.searched == 3
    assert tuner.outcome is not None
    assert "over the limit of 25" in tuner.outcome.verdict


def test_no_comparison_when_slow_candidates_have_used_up_the_limit() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=20, harm_limit_steps=25))
    while tuner.trial is not None:
        # No step seen is never a reason to end a sample.
        assert not tuner.hopeless([], None)
        tuner.report(sample(20.0 if tuner.trial.candidate else 10.0))
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            tuner.offer(Answer(FAST, 0.1, [0.0] + [-0.5] * (count - 1), [0.01] * count))
    assert tuner.outcome is not None
    assert tuner.outcome.values == DEFAULTS
    assert tuner.outcome.verdict == (
        "no comparison: slow candidates had used up the limit of 25 steps' time"
    )
    assert "confirm" not in phases(tuner)


def test_a_comparison_that_reaches_the_limit_says_so() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4, harm_limit_steps=5))
    while tuner.trial is not None:
        ms = 20.0 if tuner.trial.phase == "confirm" and tuner.trial.candidate else 10.0
        bad = tuner.hopeless([int(ms * 1e6)] * 10, sample(ms))
        assert bad == tuner.at_limit == (ms > 10.0)
        tuner.report(sample(ms, abandoned=bad))
        request = tuner.take_request()
        if request is not None:
            count = len(request.observations)
            tuner.offer(Answer(FAST, 0.1, [0.0] + [-0.5] * (count - 1), [0.01] * count))
    assert tuner.outcome is not None
    assert tuner.outcome.verdict == (
        "no significant gain: slow candidates had used up the limit of 5 steps' time"
    )


def test_while_the_optimiser_thinks_the_incumbent_runs() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(warmup_samples=0, max_samples=4))
    while not (tuner.trial and tuner.trial.waiting):
        tuner.report(sample(10.0))
    assert tuner.trial.values == DEFAULTS
    with pytest.raises(RuntimeError, match="no trial to report"):
        tuner.report(sample(10.0))
    request = tuner.take_request()
    assert request is not None
    assert tuner.take_request() is None
    count = len(request.observations)
    tuner.offer(Answer(FAST, 0.05, [0.0] * count, [0.001] * count))
    # How long it thought is not known: the candidate needs a fresh sample to be compared with.
    assert tuner.trial == Trial("search", DEFAULTS, note="incumbent")
    tuner.report(sample(10.0))
    assert tuner.trial == Trial("search", FAST, candidate=True)


def test_questions_hold_the_incumbent_first_and_gains_against_its_neighbours() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(warmup_samples=0, max_samples=4))
    # The machine gets slower by 1 % a sample: no candidate is to blame.
    number = 0
    while not (tuner.trial and tuner.trial.waiting):
        tuner.report(sample(10.0 * math.exp(0.01 * number)))
        number += 1
    request = tuner.take_request()
    assert request is not None
    assert request.observations[0] == {"point": SPACE.encode(DEFAULTS), "y": 0.0, "error": 0.0}
    assert len(request.observations) == 3
    assert abs(request.observations[1]["y"]) < 0.002
    # Asked right after the candidate: its right-hand neighbour is not known yet.
    assert abs(request.observations[2]["y"]) < 0.015


def test_clearly_bad_candidates_are_hopeless_and_others_are_not() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(warmup_samples=0))
    assert not tuner.hopeless([10**9], sample(1000.0))  # this is the incumbent
    tuner.report(sample(10.0))
    ms = 1_000_000
    assert tuner.hopeless([101 * ms], None)
    assert not tuner.hopeless([40 * ms], None)
    assert tuner.hopeless([14 * ms, 15 * ms], None)
    assert not tuner.hopeless([90 * ms, 10 * ms], None)
    assert not tuner.hopeless([], None)
    few = Sample(3, 11.0, 0.05, 1e6, 90.0)
    assert tuner.hopeless([11 * ms] * 4, few)
    rough = Sample(3, 11.0, 0.5, 1e6, 90.0)
    assert not tuner.hopeless([11 * ms] * 4, rough)


def test_a_disturbed_pair_is_measured_again() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4))
    jitter = wobble(0.002)
    disturbed = 0
    while tuner.trial is not None:
        ms = 9.0 if tuner.trial.values == FAST else 10.0
        error = 0.002
        if tuner.trial.phase == "confirm" and tuner.trial.candidate and disturbed < 2:
            ms, error, disturbed = 30.0, 0.3, disturbed + 1
        tuner.report(sample(ms * (1 + next(jitter)), error))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))
    assert tuner.outcome is not None
    assert tuner.outcome.adopted
    assert phases(tuner).count("confirm") == 2 * (CONFIRM_LOOKS[0] + 2)


def test_disturbances_that_keep_coming_are_held_against_the_candidate() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=4))
    jitter = wobble(0.002)
    compared = 0
    while tuner.trial is not None:
        ms, error = (9.0 if tuner.trial.values == FAST else 10.0), 0.002
        if tuner.trial.phase == "confirm" and tuner.trial.candidate:
            compared += 1
            if compared % 2:
                ms, error = 30.0, 0.3
        tuner.report(sample(ms * (1 + next(jitter)), error))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.001] * len(means)))
    assert tuner.outcome is not None
    assert not tuner.outcome.adopted


def test_abort_keeps_the_incumbent() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(warmup_samples=0))
    tuner.report(sample(10.0))
    tuner.abort("the optimiser ended with exit status 1")
    assert tuner.trial is None
    assert tuner.outcome is not None
    assert tuner.outcome.values == OTHER
    assert tuner.outcome.verdict == (
        "kept the current settings: the optimiser ended with exit status 1"
    )


def test_the_same_seed_and_samples_give_the_same_course() -> None:
    runs = [tune(SimulatedSteps(own_chunk_is_best, seed=3)) for _ in range(2)]
    courses = [[one.trial for one in run.tuner.history] for run in runs]
    assert courses[0] == courses[1]
    assert runs[0].outcome == runs[1].outcome
    other = tune(SimulatedSteps(own_chunk_is_best, seed=3), TunerConfig(seed=4))
    assert courses[0] != [one.trial for one in other.tuner.history]


@pytest.mark.parametrize("name", LANDSCAPES)
def test_never_ends_slower_than_it_began(name: str) -> None:
    landscape = LANDSCAPES[name]
    for seed, noise in zip(range(3), (0.01, 0.04, 0.08), strict=True):
        run = tune(SimulatedSteps(landscape, seed, noise, drift=0.02, outliers=0.01))
        # A change for the worse below half a per cent cannot be told from none.
        assert run.final_over_start(landscape) < 1.005, (seed, noise, run.outcome)
        assert run.steps <= 1500
        assert run.slowdown < 0.05


@pytest.mark.parametrize("landscape", [short_cycle_is_best, own_chunk_is_best])
def test_finds_a_gain_that_is_there(landscape: object) -> None:
    assert callable(landscape)
    best = min(landscape(values) for values in SPACE.spread(1000, 0, DEFAULTS))
    regrets = [
        landscape(tune(SimulatedSteps(landscape, seed, 0.02, 0.02)).outcome.values) / best - 1
        for seed in range(2)
    ]
    assert max(regrets) < 0.02


def test_leaves_a_bad_start_behind() -> None:
    bad = {"fusion_threshold": 0, "cycle_time": 100.0, "chunk_size": 0}
    run = tune(SimulatedSteps(default_is_best, 1, 0.04, outliers=0.01), start=bad)
    assert run.outcome.adopted
    assert default_is_best(run.outcome.values) < 1.03 * default_is_best(DEFAULTS)


def test_a_machine_without_noise_ends_too() -> None:
    run = tune(SimulatedSteps(flat, noise=0.0))
    assert not run.outcome.adopted


def test_a_candidate_is_abandoned_where_the_limit_of_harm_is_reached() -> None:
    config = TunerConfig(warmup_samples=0, harm_limit_steps=2)
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, config)
    tuner.report(sample(10.0))
    ms = 1_000_000
    # Twelve per cent slower: two steps' time are lost with the eighteenth.
    assert not tuner.hopeless([int(11.2 * ms)] * 17, None)
    assert tuner.hopeless([int(11.2 * ms)] * 18, None)
    # One long step may be a checkpoint.
    assert not tuner.hopeless([10 * ms] * 9 + [90 * ms], None)


def test_a_far_better_candidate_is_the_incumbent_at_once() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8))
    better = {tuple(DEFAULTS.values()): 6.0, tuple(FAST.values()): 5.4}
    scripted(tuner, better, wobble(0.002))
    measured = [(one.trial.phase, one.trial.candidate) for one in tuner.history]
    # The defaults are the first candidate, and compared before anything else is tried.
    first = measured.index(("confirm", True))
    assert first == 6
    assert tuner.history[first].trial.values == DEFAULTS
    after = tuner.history[first + 2 * CONFIRM_LOOKS[0] :]
    assert all(one.trial.values != OTHER for one in after)
    assert tuner.incumbent == OTHER
    assert tuner.outcome is not None
    assert tuner.outcome.values == FAST
    assert tuner.outcome.gain == pytest.approx(0.46, abs=0.01)


def test_a_confirmed_candidate_stays_when_nothing_better_follows() -> None:
    tuner = Tuner(SPACE, OTHER, DEFAULTS, TunerConfig(max_samples=8))
    scripted(tuner, {tuple(DEFAULTS.values()): 6.0, tuple(FAST.values()): 6.1}, wobble(0.002))
    assert tuner.outcome is not None
    assert tuner.outcome.adopted
    assert tuner.outcome.values == DEFAULTS


def test_rivals_are_measured_again_before_they_are_compared() -> None:
    tuner = Tuner(SPACE, DEFAULTS, DEFAULTS, TunerConfig(max_samples=8))
    jitter = wobble(0.002)
    while tuner.trial is not None:
        tuner.report(sample((9.5 if tuner.trial.candidate else 10.0) * (1 + next(jitter))))
        request = tuner.take_request()
        if request is not None:
            means = [row["y"] for row in request.observations]
            tuner.offer(Answer(FAST, 0.05, means, [0.02] * len(means)))
    again = [one for one in tuner.history if one.trial.note == "measured again"]
    assert len(again) == 10
    assert phases(tuner).index("confirm") > again[-1].number - 1
