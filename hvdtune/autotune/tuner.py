"""The course of tuning, as a state machine: samples in, the next settings to measure out.

    warm-up     the current settings; samples are thrown away
    baseline    the current settings, the *incumbent*: what every candidate is compared with
    verify      settings remembered from an earlier run, if there are any, against the incumbent as
                in `confirm`; the search is left out unless they are shown to be no faster
    search      candidate, incumbent, candidate, incumbent … : a candidate's gain is taken against
                the incumbent's level around it in time, so that drift of the machine cancels.
                Candidates: the shipped defaults, probes of one setting each, then the optimiser's;
                at last those that may be the best are measured again
    confirm     the best candidate (by the model's mean, not by its luckiest sample) against the
                incumbent on fresh samples, in the order C I I C, C I I C … (`comparison`). What is
                left of the pairs goes to a few more candidates and a second comparison
    finished    the candidate if it is faster by more than the noise, else the incumbent

A candidate that is faster by far (PROMOTE_GAIN) is confirmed at once and is the incumbent from then
on: a run that began with bad settings need not go on with them while better ones are refined.

The law: what the user had is only left for something shown to be faster at the stated confidence.
A candidate that is clearly bad is abandoned after a few steps, and the search ends when bad
candidates have cost `harm_limit_steps` steps' time in all.

Nothing here reads a clock, a file or the engine; the same answers lead to the same course.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvdtune.autotune import inference
from hvdtune.autotune.comparison import LOOKS, REPEATS, Comparison, Finding, as_shares
from hvdtune.autotune.harm import Harm
from hvdtune.autotune.record import Measurement, Record, Trial, together
from hvdtune.autotune.score import Sample
from hvdtune.autotune.space import Space, Values

__all__ = ["Answer", "Measurement", "Outcome", "Request", "Trial", "Tuner", "TunerConfig"]

QUIET_PROPOSALS = 3  # so many proposals in a row without expected gain end the search
PROBE_CELLS = 3  # of an axis; a probe lies in each but the incumbent's
RACE_GAIN = 0.5  # of `min_gain`: what measuring a candidate again has to promise
RACE_RIVALS = 4  # measured again before the model is asked anew
FIRST_SHARE = 0.7  # of the chance of an error goes to the first comparison, the rest to the second
MORE_SHARE = 2  # one candidate for every so many of the search may be measured between the two
SECOND_GAIN = 0.25  # of `min_gain`: what the model has to expect then, which is often too content
LEAST_PAIRS = 15  # that must be left for a second comparison
COMPARABLE = LOOKS[0] + REPEATS  # with fewer pairs there is none that could end
PROMOTE_GAIN = 0.1  # seen so much faster, by five standard errors: confirmed at once
PROMOTE_ERRORS = 5.0


@dataclass(frozen=True)
class TunerConfig:
    """How long to look and how sure to be. Confidence is one-sided: 0.99 errs once in 100.

    `max_pairs` is for all comparisons of a run together, pairs that are measured again included.
    """

    warmup_samples: int = 3
    max_samples: int = 20
    probes: int = 5
    spread_points: int = 3
    confidence: float = 0.99
    min_gain: float = 0.002
    harm_limit_steps: float = 200.0
    race_samples: int = 10
    max_pairs: int = 33
    noise: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """A question for the optimiser (`optimiser.Problem` as plain data)."""

    space: list[dict[str, Any]]
    observations: list[dict[str, Any]]
    seed: int
    noise: float
    incumbent: int = 0

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

    def lead(self, best: _Best) -> float:
        """E[max(0, its gain - the best's)] if both are normal and independent."""
        deviation = math.hypot(self.deviation, best.deviation)
        return inference.expected_excess(self.gain - best.gain, deviation)


_Course = Generator[Trial, Sample | None, None]
_Compared = Generator[Trial, Sample | None, bool]


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
        self.outcome: Outcome | None = None
        self._record = Record()
        self._space = space
        self._start = {key: incumbent[key] for key in space.keys}
        self._incumbent = self._start
        self._defaults = {key: defaults[key] for key in space.keys}
        self._config = config
        self._queue: list[Values] = []
        self._later_probes: list[Values] = []
        self._tried = 0
        self._pairs = 0
        self._request: Request | None = None
        self._answer: Answer | None = None
        self._is_posed = False
        self._has_waited = False  # since the last sample
        self._last: Answer | None = None
        self._harm = Harm(config.harm_limit_steps)
        self._is_behind_candidate = False
        self._recalled: Values | None = None
        self._hurry: str | None = None
        self._findings: list[Finding] = []
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
        return dict(self._start)

    @property
    def history(self) -> Sequence[Measurement]:
        """All measurements so far, in order."""
        return self._record.history

    @property
    def searched(self) -> int:
        """How many candidates have been measured in the search."""
        return self._tried

    @property
    def harm_steps(self) -> float:
        """What slow candidates have cost so far, in steps' time of the incumbent."""
        return self._harm.steps

    @property
    def at_limit(self) -> bool:
        """Whether the last candidate found hopeless was so because the limit of harm was reached.

        Otherwise it was clearly slower.
        """
        return self._harm.at_limit

    def recall(self, values: Values) -> None:
        """Settings an earlier run found best: verified behind the baseline, before any search."""
        self._recalled = {key: values[key] for key in self._space.keys}

    def report(self, sample: Sample) -> Measurement:
        """The sample of the current trial. Returns it numbered; `trial` is the next one."""
        if self._trial is None or self._trial.waiting:
            raise RuntimeError("there is no trial to report a sample for")
        is_candidate = self._trial.candidate
        if is_candidate or self._is_behind_candidate:
            usual = self._record.usual()
            self._harm.take(sample, usual, is_candidate, self._is_behind_candidate)
        self._is_behind_candidate, self._has_waited = is_candidate, False
        measurement = self._record.add(self._trial, sample)
        self._advance(sample)
        return measurement

    def take_request(self) -> Request | None:
        """A question for the optimiser, once."""
        request, self._request = self._request, None
        return request

    def offer(self, answer: Answer) -> None:
        """The optimiser's answer to the last request. One that is too late is passed over."""
        if not self._is_posed:
            return
        self._answer = answer
        if self._trial is not None and self._trial.waiting:
            self._advance(None)

    def hopeless(self, seen_ns: Sequence[int], sample: Sample | None) -> bool:
        """Whether the current candidate is so bad that it need not be measured to the end.

        `seen_ns` are the steps since the change that ran wholly under it, `sample` is made of
        those that count so far.
        """
        if self._trial is None or not self._trial.candidate:
            return False
        is_compared = self._trial.phase == "confirm"
        return self._harm.is_hopeless(seen_ns, sample, self._record.usual(), is_compared)

    @property
    def needs_model(self) -> bool:
        """Whether there is nothing to conclude with if the optimiser cannot be asked any more."""
        is_compared = self._trial is not None and self._trial.phase in ("verify", "confirm")
        return self._hurry is None and self.outcome is None and not is_compared

    def end_search(self, reason: str) -> None:
        """Measure no further candidates; the best so far is compared as usual."""
        self._hurry = reason

    def waited(self) -> bool:
        """A sample's steps have passed while the tuner was `waiting` for the optimiser.

        If the search is to end, that was long enough: the measurements have to do, without a model.
        On a machine whose CPUs are all busy an answer may take longer than all the rest.
        True: it was long enough, and no model is needed any more.
        """
        if self._hurry is None or self._trial is None or not self._trial.waiting:
            return False
        rows = self._question().observations
        means, errors = ([row[key] for row in rows] for key in ("y", "error"))
        self.offer(Answer(self._incumbent, 0.0, means, errors))
        return True

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
            yield from self._compare(self._recalled, "verify")
            if not self._is_refuted() or self._pairs_left() < COMPARABLE:
                return
            self.outcome = None
        self._queue = self._first_candidates()
        while (yield from self._search()):
            pass
        if not self._record.candidates:
            # The optimiser could say nothing about the incumbent alone.
            self._keep(f"no significant gain: no candidate was measured; {self._search_end}")
            return
        answer = yield from self._race()
        best = self._best(answer)
        if best is None:
            self._keep("no significant gain: no other candidate was measured")
        elif best.gain + best.deviation < self._config.min_gain:
            margin = inference.student_quantile(self._config.confidence, math.inf)
            margin *= max(best.deviation, self._record.usual().error)
            self._keep(
                f"no significant gain ({_percent(best.gain)} ± {_percent(margin)} for the best "
                f"candidate; {self._search_end})",
                best.gain,
                margin,
            )
        elif self._harm.is_used_up:
            self._keep(f"no comparison: {self._used_up()}")
        else:
            yield from self._confirm(best.values)

    def _search(self) -> _Compared:
        """Measure candidates, until one is promoted (True: go on) or to the end of the search.

        If the last answer already knows all candidates it is `_last`.
        """
        quiet = 0
        while self._tried < self._config.max_samples:
            if self._hurry is not None or self._pairs_left() < COMPARABLE:
                self._search_end = self._hurry or self._too_few_pairs()
                return False
            values = self._next_queued()
            if values is None:
                answer = yield from self._ask()
                if self._hurry is not None:
                    self._last = answer
                    continue
                quiet = quiet + 1 if answer.expected_gain < self._config.min_gain else 0
                # A model of a few points is too easily content.
                if quiet >= QUIET_PROPOSALS and self._tried >= self._config.max_samples // 2:
                    self._search_end = (
                        f"the model expects less than {_percent(self._config.min_gain)} more"
                    )
                    self._last = answer
                    return False
                values = answer.values
            yield from self._try(values)
            self._tried += 1
            if self._harm.ends_search:
                self._search_end = (
                    f"slow candidates had cost {self._harm.steps:.0f} steps' time, "
                    f"over the limit of {self._config.harm_limit_steps:.0f}"
                )
                return False
            if self._is_far_better(values):
                if (yield from self._compare(values, "confirm")):
                    return True
                if not self._findings:
                    self.outcome = None  # it was about this candidate alone
        return False

    def _try(self, values: Values) -> _Course:
        """Measure a candidate between samples of the incumbent."""
        if self._has_waited:
            # The incumbent's last sample is old by now, and nobody knows how old.
            yield Trial("search", self._incumbent, note="incumbent")
        yield Trial("search", values, candidate=True)
        # Asked before the incumbent is measured, so that the optimiser thinks meanwhile.
        if not self._queue:
            self._pose()
        yield Trial("search", self._incumbent, note="incumbent")

    def _race(self) -> Generator[Trial, Sample | None, Answer]:
        """Measure those again that may be the best, while that is worth it; the last answer.

        A rival is worth it if it is expected to beat the best by RACE_GAIN of what is worth having
        at all: E[max(0, its gain - the best's)], by the model's means and deviations.
        """
        answer = self._last or (yield from self._ask())
        left = self._config.race_samples if self._pairs_left() >= COMPARABLE else 0
        while left > 0 and self._hurry is None and not self._harm.ends_search:
            rivals = sorted(self._offered(answer), key=lambda one: -one.gain)
            if not rivals or rivals[0].gain + rivals[0].deviation < self._config.min_gain:
                break
            best = rivals[0]
            worth = RACE_GAIN * self._config.min_gain
            rivals = [one for one in rivals[1:] if one.lead(best) > worth]
            if not rivals:
                break
            for rival in [best, *rivals][: min(RACE_RIVALS, left)]:
                yield Trial("search", rival.values, candidate=True, note="measured again")
                yield Trial("search", self._incumbent, note="incumbent")
                left -= 1
            answer = yield from self._ask()
        return answer

    def _confirm(self, values: Values) -> _Course:
        """Compare the best; what is left of the pairs then goes to a second look around.

        Together, both comparisons err no more often than the confidence says.
        """
        yield from self._compare(values, "confirm", FIRST_SHARE)
        first = self.outcome
        assert first is not None
        answer = yield from self._look_around()
        if answer is None or self._is_at_an_end():
            return
        best = max(
            (one for one in self._offered(answer) if one.values != values),
            key=lambda one: one.gain,
            default=None,
        )
        if best is None or best.gain + best.deviation < self._config.min_gain:
            return
        yield from self._compare(best.values, "confirm", 1 - FIRST_SHARE)
        margins = [one.margin if one and one.margin else math.inf for one in (first, self.outcome)]
        if not self._findings and margins[0] < margins[1]:
            self.outcome = first  # it says more

    def _look_around(self) -> Generator[Trial, Sample | None, Answer | None]:
        """Measure some more candidates, each for a pair that is left; the model's last answer.

        First the probes that the search had no room for: of parts of the space where nothing was
        measured, the model knows little and may be wrong about that. Then what it proposes, while
        it expects something of it: it has learnt from the pairs, too.
        """
        self._queue = self._later_probes
        for _ in range(self._config.max_samples // MORE_SHARE):
            if self._is_at_an_end():
                return None
            if self._pairs_left() == LEAST_PAIRS:
                break
            values = self._next_queued()
            if values is None:
                answer = yield from self._ask()
                if answer.expected_gain < SECOND_GAIN * self._config.min_gain:
                    return answer
                values = answer.values
            yield from self._try(values)
            self._pairs += 1
        return (yield from self._ask())

    def _is_at_an_end(self) -> bool:
        is_over = self._hurry is not None or self._harm.ends_search
        return is_over or self._pairs_left() < LEAST_PAIRS

    def _pairs_left(self) -> int:
        return self._config.max_pairs - self._pairs

    def _too_few_pairs(self) -> str:
        return f"{self._pairs} of the {self._config.max_pairs} pairs were used up before"

    def _used_up(self) -> str:
        return f"slow candidates had used up the limit of {self._harm.limit:g} steps' time"

    def _is_far_better(self, values: Values) -> bool:
        candidate = self._record.find(values)
        assert candidate is not None  # it has just been measured
        y, error = self._record.observe(candidate)
        gain = self._record.baseline - y
        return gain > PROMOTE_GAIN + PROMOTE_ERRORS * error

    def _compare(self, values: Values, phase: str, share: float = 1.0) -> _Compared:
        """Compare with the incumbent on fresh samples; True: these are the incumbent now.

        It may err with that share of the chance that the confidence leaves. Where too few pairs are
        left for that, the incumbent stays.
        """
        if self._pairs_left() < COMPARABLE:
            self._keep(f"no comparison: {self._too_few_pairs()}")
            return False
        compared = Comparison(
            self._record.noise(),
            self._record.usual_error(),
            1 - (1 - self._config.confidence) * share,
            self._config.min_gain,
            self._pairs_left() - REPEATS,
        )
        finding = None
        while finding is None:
            pair = {}
            first = compared.candidate_first
            for is_candidate in (first, not first):
                tried = values if is_candidate else self._incumbent
                number, most = len(compared.differences) + 1, compared.looks[-1]
                note = f"pair {number} of at most {most}"
                sample = yield Trial(phase, tried, is_candidate, note=note)
                assert sample is not None
                if sample.abandoned:
                    self._pairs += len(compared.differences) + compared.repeats + 1
                    slower = "the candidate was clearly slower"
                    why = self._used_up() if self._harm.at_limit else slower
                    self._keep(f"no significant gain: {why}")
                    return False
                pair[is_candidate] = sample
            finding = compared.add(pair[True], pair[False])
        self._pairs += finding.pairs + compared.repeats
        if finding.faster:
            self._adopt(values, finding)
        else:
            gain, margin = as_shares(finding.gain, finding.margin, faster=False)
            self._keep(
                f"no significant gain ({_percent(gain)} ± {_percent(margin)} for the best "
                f"candidate in {finding.pairs} pairs at {self._sure()})",
                gain,
                margin,
            )
        return finding.faster

    def _is_refuted(self) -> bool:
        """Whether the comparison that has just ended showed its candidate to be no faster."""
        found = self.outcome
        assert found is not None
        if found.adopted:
            return False
        if found.gain is None or found.margin is None:
            return True  # abandoned
        return found.gain + found.margin < self._config.min_gain

    def _pose(self) -> None:
        self._request, self._is_posed = self._question(), True

    def _ask(self) -> Generator[Trial, Sample | None, Answer]:
        if not self._is_posed:
            self._pose()
        while self._answer is None:
            self._has_waited = True
            yield Trial("search", self._incumbent, waiting=True)
        answer, self._answer, self._is_posed = self._answer, None, False
        return answer

    def _advance(self, sample: Sample | None) -> None:
        try:
            self._trial = self._course.send(sample)
        except StopIteration:
            self._trial = None

    # -- what is known --

    def _first_candidates(self) -> list[Values]:
        """What is tried before the model is asked, as changes of the incumbent of that time.

        Probes tell what each setting does alone, the spread points where that does not add up. At
        most half of the samples: the rest is for the model, which needs one of them at least.
        """
        most, seed = max(1, self._config.max_samples // 2), self._config.seed
        probes = self._space.probes(self._start, PROBE_CELLS, seed)
        spread = self._space.spread(self._config.spread_points, seed, self._defaults)
        defaults = [self._defaults] if self._defaults != self._start else []
        first = (probes[: self._config.probes] + spread)[:most]
        self._later_probes = [probe for probe in probes if probe not in first]
        return defaults + first

    def _next_queued(self) -> Values | None:
        while self._queue:
            values = self._space.allowed({**self._incumbent, **self._queue.pop(0)})
            if values != self._incumbent and self._record.find(values) is None:
                return values
        return None

    def _question(self) -> Request:
        # The first incumbent's own gain is zero by definition: exactly known.
        rows: list[dict[str, Any]] = [
            {"point": self._space.encode(self._start), "y": 0.0, "error": 0.0}
        ]
        at = 0
        for candidate in self._record.candidates:
            y, error = self._record.observe(candidate)
            if candidate.values == self._incumbent:
                at = len(rows)
            rows.append({"point": self._space.encode(candidate.values), "y": y, "error": error})
        return Request(self._space.to_json(), rows, self._config.seed, self._config.noise, at)

    def _best(self, answer: Answer) -> _Best | None:
        return max(self._offered(answer), key=lambda best: best.gain, default=None)

    def _offered(self, answer: Answer) -> list[_Best]:
        # means[0] is the first incumbent's; candidates follow in the order they were asked in.
        asked = zip(self._record.candidates, answer.means[1:], answer.deviations[1:], strict=True)
        return [
            _Best(candidate.values, 1 - math.exp(mean - self._record.baseline), deviation)
            for candidate, mean, deviation in asked
            if candidate.values != self._incumbent
        ]

    # -- the end --

    def _adopt(self, values: Values, finding: Finding) -> None:
        self._incumbent = values
        self._record.adopt(finding.gain)
        self._findings.append(finding)
        self._keep("")

    def _keep(self, verdict: str, gain: float | None = None, margin: float | None = None) -> None:
        """The outcome: the present incumbent stays, which may have been adopted before."""
        if self._findings:
            gains, margins = zip(*((one.gain, one.margin) for one in self._findings), strict=True)
            gain, margin = as_shares(sum(gains), math.hypot(*margins), faster=True)
            verdict = (
                f"adopted: {_percent(gain)} ± {_percent(margin)} less time a step "
                f"than the current settings, at {self._sure()}"
            )
        sample = together(self._record.samples(self._incumbent))
        self.outcome = Outcome(
            dict(self._incumbent), bool(self._findings), verdict, sample, gain, margin
        )

    def _sure(self) -> str:
        return f"{100 * self._config.confidence:g} % confidence"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
