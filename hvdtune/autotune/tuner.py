"""The course of tuning, as a state machine: samples in, the next settings to measure out.

    warm-up     the current settings; samples are thrown away
    baseline    the current settings, the *incumbent*: what every candidate is compared with
    verify      settings remembered from an earlier run, if there are any, against the incumbent as
                in `confirm`; the search is left out unless they are shown to be no faster
    search      candidate, incumbent, candidate, incumbent … : a candidate's gain is taken against
                the incumbent's level around it in time, so that drift of the machine cancels.
                Candidates: the shipped defaults, points that cover the space, then the optimiser's
    confirm     the best candidate (by the model's mean, not by its luckiest sample) against the
                incumbent on fresh samples, in the order C I I C, C I I C …
    finished    the candidate if it is faster by more than the noise, else the incumbent

The law: what the user had is only left for something shown to be faster at the stated confidence.
A candidate that is clearly bad is abandoned after a few steps, and the search ends when bad
candidates have cost `harm_limit_steps` steps' time in all.

Nothing here reads a clock, a file or the engine; the same answers lead to the same course.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdtune.autotune import inference
from hvdtune.autotune.inference import Estimate
from hvdtune.autotune.score import Sample
from hvdtune.autotune.space import Space, Values

# A candidate is abandoned if its first whole step takes ABANDON_AT_ONCE times the incumbent's, if
# the better of two takes ABANDON_RATIO times, or if the mean of a few steps is slower by
# ABANDON_LOSS and three standard errors. A single step has to be far off: it may be a checkpoint.
ABANDON_AT_ONCE = 10.0
ABANDON_RATIO = 1.3
ABANDON_LOSS = 0.05
ABANDON_STEPS = 3
# So rough is what a few steps say about an abandoned candidate.
ABANDONED_ERROR = 0.2
SPREAD_SHARE = 0.6  # spread points lie in this share of every axis, around the shipped defaults
# After these many pairs the confirmation may end; the chance of a false gain is spent evenly.
CONFIRM_LOOKS = (4, 8, 12)
# A pair with a sample this much rougher than usual is measured again, but only so many times: what
# keeps happening is what the candidate does.
DISTURBED = 5.0
CONFIRM_REPEATS = 3
QUIET_PROPOSALS = 2  # so many proposals in a row without expected gain end the search


@dataclass(frozen=True)
class TunerConfig:
    """How long to look and how sure to be. Confidence is one-sided: 0.99 errs once in 100."""

    warmup_samples: int = 3
    max_samples: int = 20
    spread_points: int = 4
    confidence: float = 0.99
    min_gain: float = 0.002
    harm_limit_steps: float = 200.0
    noise: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """Settings to measure. `waiting`: run them, but nothing is to be measured yet."""

    phase: str
    values: Values
    candidate: bool = False
    waiting: bool = False
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """A trial and what came of it; `number` counts all measurements from 1."""

    number: int
    trial: Trial
    sample: Sample

    @property
    def log_time(self) -> float:
        """Natural logarithm of the step time."""
        return math.log(self.sample.step_time_ms)


@dataclass(frozen=True)
class Request:
    """A question for the optimiser (`optimiser.Problem` as plain data)."""

    space: list[dict[str, Any]]
    observations: list[dict[str, Any]]
    seed: int
    noise: float

    def to_json(self) -> dict[str, Any]:
        """The request as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Answer:
    """The optimiser's answer: settings, expected gain, posterior means and deviations."""

    values: Values
    expected_gain: float
    means: Sequence[float]
    deviations: Sequence[float]


@dataclass(frozen=True)
class Outcome:
    """How it ended. `gain` is the share of the step time saved by the best candidate."""

    values: Values
    adopted: bool
    verdict: str
    sample: Sample | None = None
    gain: float | None = None
    margin: float | None = None


@dataclass
class _Best:
    """The candidate that goes into the confirmation, and the model's opinion of it."""

    values: Values
    gain: float
    deviation: float


@dataclass
class _Candidate:
    """A settings point of the search; `measurements` are its own, by number."""

    values: Values
    measurements: list[Measurement] = field(default_factory=list)


_Course = Generator[Trial, Sample | None, None]


class Tuner:
    """Decides what to measure next. Not thread-safe.

    Measure `trial`'s settings and call `report` with the sample; pass `take_request`'s questions
    to the optimiser and its answers to `offer`. While `trial` is `waiting`, only `offer` moves on.
    When `outcome` is there, its values are the ones to keep. A space without dimensions leaves
    nothing to do but `abort`.
    """

    def __init__(
        self, space: Space, incumbent: Values, defaults: Values, config: TunerConfig
    ) -> None:
        self.history: list[Measurement] = []
        self.outcome: Outcome | None = None
        self._space = space
        self._incumbent = {key: incumbent[key] for key in space.keys}
        self._defaults = {key: defaults[key] for key in space.keys}
        self._config = config
        self._candidates: list[_Candidate] = []
        self._request: Request | None = None
        self._answer: Answer | None = None
        self._is_posed = False
        self._last: Answer | None = None
        self._harm_steps = 0.0
        self._recalled: Values | None = None
        self._search_end = f"all {config.max_samples} samples were used"
        self._course = self._run()
        self._trial: Trial | None = next(self._course)

    @property
    def trial(self) -> Trial | None:
        """What to run now; None when tuning is finished."""
        return self._trial

    @property
    def incumbent(self) -> Values:
        """The settings that tuning began with."""
        return dict(self._incumbent)

    @property
    def searched(self) -> int:
        """How many candidates have been measured in the search."""
        return sum(len(candidate.measurements) for candidate in self._candidates)

    def recall(self, values: Values) -> None:
        """Settings an earlier run found best: verified behind the baseline, before any search."""
        self._recalled = {key: values[key] for key in self._space.keys}

    def report(self, sample: Sample) -> Measurement:
        """The sample of the current trial. Returns it numbered; `trial` is the next one."""
        if self._trial is None or self._trial.waiting:
            raise RuntimeError("there is no trial to report a sample for")
        measurement = Measurement(len(self.history) + 1, self._trial, sample)
        self.history.append(measurement)
        self._advance(sample)
        return measurement

    def take_request(self) -> Request | None:
        """A question for the optimiser, once."""
        request, self._request = self._request, None
        return request

    def offer(self, answer: Answer) -> None:
        """The optimiser's answer to the last request."""
        self._answer = answer
        if self._trial is not None and self._trial.waiting:
            self._advance(None)

    def hopeless(self, seen_ns: Sequence[int], sample: Sample | None) -> bool:
        """Whether the current candidate is so bad that it need not be measured to the end.

        `seen_ns` are the steps since the change that ran wholly under it, `sample` is made of
        those that count so far.
        """
        if self._trial is None or not self._trial.candidate or self._trial.phase == "confirm":
            return False
        level = self._level(len(self.history) + 1)
        usual_ns = math.exp(level.value) * 1e6
        ratio = ABANDON_AT_ONCE if len(seen_ns) == 1 else ABANDON_RATIO
        if seen_ns and min(seen_ns) > ratio * usual_ns:
            return True
        if sample is None or sample.steps < ABANDON_STEPS:
            return False
        loss = math.log(sample.step_time_ms) - level.value
        return loss > ABANDON_LOSS + 3 * math.hypot(sample.relative_error, level.error)

    def abort(self, reason: str) -> None:
        """End tuning here; the incumbent stays."""
        self._course.close()
        self._trial = None
        self._keep(f"kept the current settings: {reason}")

    # -- the course --

    def _run(self) -> _Course:
        for left in range(self._config.warmup_samples - 1, -1, -1):
            yield Trial("warmup", self._incumbent, note=f"{left} remaining")
        yield Trial("baseline", self._incumbent)
        if self._recalled is not None:
            yield from self._confirm(_Best(self._recalled, 0.0, 0.0), "verify")
            if not self._is_refuted():
                return
            self.outcome = None
        yield from self._search()
        answer = self._last or (yield from self._ask())
        best = self._best(answer)
        if best is None:
            self._keep("no significant gain: no candidate was measured")
        elif best.gain < self._config.min_gain:
            margin = max(best.deviation, self._incumbent_error()) * self._normal()
            self._keep(
                f"no significant gain ({_percent(best.gain)} ± {_percent(margin)} for the best "
                f"candidate; {self._search_end})",
                best.gain,
                margin,
            )
        else:
            yield from self._confirm(best)

    def _search(self) -> _Course:
        """Measure candidates; if the last answer already knows all of them it is `_last`."""
        queue = self._first_candidates()
        quiet = 0
        for number in range(self._config.max_samples):
            if queue:
                values = queue.pop(0)
            else:
                must_wait = self._answer is None
                answer = yield from self._ask()
                quiet = quiet + 1 if answer.expected_gain < self._config.min_gain else 0
                # A model of a few points is too easily content.
                if quiet >= QUIET_PROPOSALS and number >= self._config.max_samples // 2:
                    self._search_end = (
                        f"the model expects less than {_percent(self._config.min_gain)} more"
                    )
                    self._last = answer
                    return
                values = answer.values
                if must_wait:
                    # The incumbent's last sample is old by now, and nobody knows how old.
                    yield Trial("search", self._incumbent, note="incumbent")
            yield Trial("search", values, candidate=True)
            self._remember(values)
            # Asked before the incumbent is measured, so that the optimiser thinks meanwhile.
            if not queue:
                self._pose()
            yield Trial("search", self._incumbent, note="incumbent")
            if self._harm_steps > self._config.harm_limit_steps:
                self._search_end = (
                    f"slow candidates had cost {self._harm_steps:.0f} steps' time, "
                    f"over the limit of {self._config.harm_limit_steps:.0f}"
                )
                return

    def _is_refuted(self) -> bool:
        """Whether the comparison that has just ended showed its candidate to be no faster."""
        found = self.outcome
        assert found is not None
        if found.adopted:
            return False
        if found.gain is None or found.margin is None:
            return True  # abandoned
        return found.gain + found.margin < self._config.min_gain

    def _confirm(self, best: _Best, phase: str = "confirm") -> _Course:
        noise = inference.noise_between(
            [one.log_time for one in self.history if self._is_incumbent(one)]
        )
        # Bonferroni: the looks together err as rarely as the confidence says.
        confidence = 1 - (1 - self._config.confidence) / len(CONFIRM_LOOKS)
        usual_error = statistics.median(
            one.sample.relative_error for one in self.history if self._is_incumbent(one)
        )
        differences: list[float] = []
        repeats = 0
        while True:
            # Candidate first in every other pair: a linear drift cancels over two pairs.
            candidate_first = len(differences) % 2 == 0
            pair = {}
            for is_candidate in (candidate_first, not candidate_first):
                values = best.values if is_candidate else self._incumbent
                note = f"pair {len(differences) + 1} of at most {CONFIRM_LOOKS[-1]}"
                sample = yield Trial(phase, values, is_candidate, note=note)
                assert sample is not None
                if sample.abandoned:
                    self._keep("no significant gain: the candidate was clearly slower")
                    return
                pair[is_candidate] = sample
            disturbed = max(one.relative_error for one in pair.values()) > DISTURBED * usual_error
            if disturbed and repeats < CONFIRM_REPEATS:
                repeats += 1
                continue
            differences.append(math.log(pair[True].step_time_ms / pair[False].step_time_ms))
            if len(differences) not in CONFIRM_LOOKS:
                continue
            estimate = inference.paired(differences, noise)
            margin = estimate.margin(confidence)
            gain = -estimate.value
            if gain > margin and gain >= self._config.min_gain:
                self._adopt(best.values, gain, margin, phase)
                return
            is_last = len(differences) == CONFIRM_LOOKS[-1]
            if is_last or gain + margin < self._config.min_gain:
                self._keep(
                    f"no significant gain ({_percent(gain)} ± {_percent(margin)} for the best "
                    f"candidate in {len(differences)} pairs at {self._sure()})",
                    gain,
                    margin,
                )
                return

    def _pose(self) -> None:
        self._request, self._is_posed = self._question(), True

    def _ask(self) -> Generator[Trial, Sample | None, Answer]:
        if not self._is_posed:
            self._pose()
        while self._answer is None:
            yield Trial("search", self._incumbent, waiting=True)
        answer, self._answer, self._is_posed = self._answer, None, False
        return answer

    def _advance(self, sample: Sample | None) -> None:
        trial = self._trial
        if sample is not None and trial is not None and trial.candidate:
            level = self._level(len(self.history))
            lost = sample.step_time_ms / math.exp(level.value) - 1
            self._harm_steps += max(0.0, lost) * sample.steps
        try:
            self._trial = self._course.send(sample)
        except StopIteration:
            self._trial = None

    # -- what is known --

    def _first_candidates(self) -> list[Values]:
        # At most a quarter of the samples goes to spread points: the rest is for the model.
        count = min(self._config.spread_points, self._config.max_samples // 4)
        spread = self._space.spread(count, self._config.seed, self._defaults, SPREAD_SHARE)
        candidates: list[Values] = []
        for values in [self._defaults, *spread]:
            if values != self._incumbent and values not in candidates:
                candidates.append(values)
        return candidates

    def _remember(self, values: Values) -> None:
        known = next((one for one in self._candidates if one.values == values), None)
        if known is None:
            known = _Candidate(values)
            self._candidates.append(known)
        known.measurements.append(self.history[-1])

    def _is_incumbent(self, measurement: Measurement) -> bool:
        return not measurement.trial.candidate and measurement.trial.phase != "warmup"

    def _level(self, position: float) -> Estimate:
        known = [one for one in self.history if self._is_incumbent(one)]
        return inference.level(
            position,
            [one.number for one in known],
            [one.log_time for one in known],
            [one.sample.relative_error for one in known],
        )

    def _incumbent_error(self) -> float:
        return self._level(len(self.history)).error

    def _observe(self, candidate: _Candidate) -> tuple[float, float]:
        """y and its error (see `optimiser`) of a candidate, over all its measurements."""
        weights, values = [], []
        for one in candidate.measurements:
            level = self._level(one.number)
            error = math.hypot(one.sample.relative_error, level.error)
            if one.sample.abandoned:
                error = min(error, ABANDONED_ERROR)
            weights.append(1 / error**2)
            values.append(one.log_time - level.value)
        total = sum(weights)
        mean = sum(w * value for w, value in zip(weights, values, strict=True)) / total
        return mean, 1 / math.sqrt(total)

    def _question(self) -> Request:
        # The incumbent's own gain is zero by definition: exactly known.
        rows: list[dict[str, Any]] = [
            {"point": self._space.encode(self._incumbent), "y": 0.0, "error": 0.0}
        ]
        for candidate in self._candidates:
            y, error = self._observe(candidate)
            rows.append({"point": self._space.encode(candidate.values), "y": y, "error": error})
        return Request(self._space.to_json(), rows, self._config.seed, self._config.noise)

    def _best(self, answer: Answer) -> _Best | None:
        # means[0] is the incumbent's; candidates follow in the order they were asked in.
        offered = [
            _Best(candidate.values, 1 - math.exp(mean), deviation)
            for candidate, mean, deviation in zip(
                self._candidates, answer.means[1:], answer.deviations[1:], strict=True
            )
        ]
        return max(offered, key=lambda best: best.gain, default=None)

    # -- the end --

    def _adopt(self, values: Values, log_gain: float, margin: float, phase: str) -> None:
        gain = 1 - math.exp(-log_gain)
        self.outcome = Outcome(
            values=dict(values),
            adopted=True,
            verdict=f"adopted: {_percent(gain)} ± {_percent(margin)} less time a step "
            f"than the current settings, at {self._sure()}",
            sample=_together([one.sample for one in self.history if one.trial.phase == phase
                              and one.trial.candidate]),
            gain=gain,
            margin=margin,
        )  # fmt: skip

    def _keep(self, verdict: str, gain: float | None = None, margin: float | None = None) -> None:
        known = [one.sample for one in self.history if self._is_incumbent(one)]
        self.outcome = Outcome(
            dict(self._incumbent), False, verdict, _together(known), gain, margin
        )

    def _sure(self) -> str:
        return f"{100 * self._config.confidence:g} % confidence"

    def _normal(self) -> float:
        return inference.student_quantile(self._config.confidence, math.inf)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _together(samples: Sequence[Sample]) -> Sample | None:
    """Several samples of the same settings as one: means, and the mean's standard error."""
    if not samples:
        return None
    count = len(samples)
    return Sample(
        steps=sum(sample.steps for sample in samples),
        step_time_ms=sum(sample.step_time_ms for sample in samples) / count,
        stderr_ms=math.sqrt(sum(sample.stderr_ms**2 for sample in samples)) / count,
        bytes_per_step=sum(sample.bytes_per_step for sample in samples) / count,
        score=sum(sample.score for sample in samples) / count,
        outliers=sum(sample.outliers for sample in samples),
    )
