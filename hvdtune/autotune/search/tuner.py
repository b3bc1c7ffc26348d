"""The course of tuning as a state machine: takes samples, returns the next settings to measure.

    warm-up     the current settings; samples are thrown away
    baseline    the current settings, the *incumbent*, with which every candidate is compared.
                Settings that cannot act on steps of this size leave the search (`Space.within`)
    verify      settings remembered from an earlier run, if any, against the incumbent as in
                `confirm`; there is no search unless they are shown to be no faster
    search      rounds: up to ROUND candidates and the incumbent alternate, a few steps each, so
                that disturbances of the machine affect all of them. A candidate stays until
                another one is surely better, or it is known well enough. Candidates: the shipped
                defaults, alone; probes of one setting each; then the optimiser's
    confirm     the best candidate (by the model's mean, not by its luckiest visits) against the
                incumbent on fresh visits, in the order C I I C, C I I C … (`comparison`)
    finished    the candidate if it is faster by more than the noise, else the incumbent

A candidate that is far faster (PROMOTE_GAIN) is confirmed at once and becomes the incumbent: so a
run that began with bad settings does not keep them while better ones are refined.

Turns are short because step times of real machines drift: the mean of many steps in a row is hardly
more precise than that of a few, but the difference of neighbours is.

The rule: the user's settings are replaced only by settings shown to be faster at the stated
confidence. A clearly bad candidate is abandoned after a few steps, and the search ends when bad
candidates have cost `harm_limit_steps` steps' time in all.

Nothing here reads a clock, a file or the engine; the same inputs lead to the same course.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from hvdtune.autotune.search.observations import Measurement, Record, Trial, together
from hvdtune.autotune.search.question import Answer, Request
from hvdtune.autotune.search.space import Space, Values
from hvdtune.autotune.statistics import inference
from hvdtune.autotune.statistics.comparison import LOOKS, REPEATS, Comparison, Finding, as_shares
from hvdtune.autotune.statistics.harm import Harm
from hvdtune.autotune.statistics.score import Sample

__all__ = ["Measurement", "Outcome", "Trial", "Tuner", "TunerConfig"]

ROUND = 4  # candidates that alternate with the incumbent
MOST_TURNS = 10
LEAST_TURNS = 2  # before a candidate is left behind or promoted
ASK_BEHIND = 2  # turns of a round, after which the model is asked for the next candidates
LEFT_BEHIND = 1.5  # standard errors; a candidate this much worse than the best gets no more turns
PRECISE = 0.003  # nor does a candidate known this precisely
CANDIDATES = 0.6  # of `max_samples`; the rest is for the incumbent and the comparison
PROBES = 0.5  # of the candidates; the rest is for the model
PROBE_CELLS = 3  # of an axis; each gets a probe, except the incumbent's
LEADS = 2.0  # standard errors; a candidate this much better is the base of a round's probes
WORTH = 0.25  # of the gain that a comparison would find half of the time: below it the search ends
COMPARABLE = LOOKS[0] + REPEATS  # with fewer pairs, no comparison could end
PROMOTE_GAIN = 0.1  # faster by this much and three standard errors: confirmed at once
PROMOTE_ERRORS = 3.0


@dataclass(frozen=True)
class TunerConfig:
    """How long to search and how sure to be. Confidence is one-sided: 0.99 errs once in 100.

    A visit has `visit_steps`, and more of very short steps; then a round has fewer turns. From the
    search on, about `max_samples` are taken, a share CANDIDATES of which is of candidates.
    `max_pairs` is for all comparisons of a run together, including pairs that are measured again.
    """

    warmup_samples: int = 3
    max_samples: int = 20
    confidence: float = 0.99
    min_gain: float = 0.002
    harm_limit_steps: float = 200.0
    max_pairs: int = 60
    visit_steps: int = 5
    noise: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result. `gain` is the share of the step time that the best candidate saves."""

    values: Values
    adopted: bool
    verdict: str
    sample: Sample | None = None
    gain: float | None = None
    margin: float | None = None


@dataclass
class _Best:
    """The candidate for the confirmation, and the model's opinion of it."""

    values: Values
    gain: float
    deviation: float


_Course = Generator[Trial, Sample | None, None]
_Compared = Generator[Trial, Sample | None, bool]


class Tuner:
    """Decides what to measure next. Not thread-safe.

    Measure `trial`'s settings and call `report` with the sample; pass `take_request`'s questions
    to the optimiser and its answers to `offer`. While `trial` is `waiting`, only `offer` advances.
    `outcome` has the final values. If the space has no dimensions, only `abort` can be called.
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
        self._queue: list[Values] | None = None  # not known yet
        self._tried = 0
        self._pairs = 0
        self._request: Request | None = None
        self._answer: Answer | None = None
        self._is_posed = False
        self._told = 0  # samples that `report` has returned
        self._harm = Harm(config.harm_limit_steps)
        self._is_behind_candidate = False
        self._recalled: Values | None = None
        self._hurry: str | None = None
        self._findings: list[Finding] = []
        self._candidates = math.ceil(CANDIDATES * config.max_samples)
        self._search_end = f"all {self._candidates} candidates were measured"
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
        """All samples so far, in order."""
        return self._record.samples

    @property
    def searched(self) -> int:
        """How many candidates have been measured in the search."""
        return self._tried

    @property
    def harm_steps(self) -> float:
        """What slow candidates have cost so far, in units of the incumbent's step time."""
        return self._harm.steps

    @property
    def at_limit(self) -> bool:
        """Whether the last candidate was given up because of the harm limit, not for being slow."""
        return self._harm.at_limit

    def recall(self, values: Values) -> None:
        """Set an earlier run's best settings: verified after the baseline, before any search."""
        self._recalled = {key: values[key] for key in self._space.keys}

    def report(self, sample: Sample) -> Sequence[Measurement]:
        """Take the sample of the current trial; `trial` is then the next one.

        Returns the samples that this completes, numbered; none if further visits must follow.
        """
        if self._trial is None or self._trial.waiting:
            raise RuntimeError("there is no trial to report a sample for")
        is_candidate = self._trial.candidate
        if is_candidate or self._is_behind_candidate:
            usual = self._record.usual()
            self._harm.take(sample, usual, is_candidate, self._is_behind_candidate)
        self._is_behind_candidate = is_candidate
        self._record.add(self._trial, sample, self._harm.at_limit)
        self._advance(sample)
        return self._untold()

    def rest(self) -> Sequence[Measurement]:
        """Samples that were not returned before; combines the remaining visits."""
        self._record.close()
        return self._untold()

    def _untold(self) -> Sequence[Measurement]:
        told, self._told = self._told, len(self._record.samples)
        return self._record.samples[told:]

    def take_request(self) -> Request | None:
        """A question for the optimiser, once."""
        request, self._request = self._request, None
        return request

    def offer(self, answer: Answer) -> None:
        """Take the optimiser's answer to the last request. A late answer is ignored."""
        if not self._is_posed:
            return
        self._answer = answer
        if self._trial is not None and self._trial.waiting:
            self._advance(None)

    def hopeless(self, seen_ns: Sequence[int], sample: Sample | None) -> bool:
        """Whether the current candidate is so bad that it need not be measured to the end.

        `seen_ns` are the steps since the change that ran entirely under it, `sample` is made of
        those that count so far.
        """
        if self._trial is None or not self._trial.candidate:
            return False
        is_compared = self._trial.phase == "confirm"
        return self._harm.is_hopeless(seen_ns, sample, self._record.usual(), is_compared)

    @property
    def needs_model(self) -> bool:
        """Whether tuning cannot reach a conclusion if the optimiser stops answering."""
        is_compared = self._trial is not None and self._trial.phase in ("verify", "confirm")
        return self._hurry is None and self.outcome is None and not is_compared

    def end_search(self, reason: str) -> None:
        """Measure no further candidates; the best so far is still compared."""
        self._hurry = reason

    def waited(self) -> bool:
        """A sample's steps have passed while the tuner was `waiting` for the optimiser.

        If the search must end, that was long enough: the measurements must suffice, without a
        model. If all CPUs are busy, an answer may take longer than everything else. Returns True if
        it was long enough and no model is needed any more.
        """
        if self._hurry is None or self._trial is None or not self._trial.waiting:
            return False
        rows = self._question().observations
        means, errors = ([row[key] for row in rows] for key in ("y", "error"))
        self.offer(Answer([], 0.0, means, errors))
        return True

    def abort(self, reason: str) -> None:
        """End tuning here; the incumbent stays."""
        self._course.close()
        self._record.close()
        self._trial = None
        self._keep(f"kept the current settings: {reason}")

    # -- the states --

    def _run(self) -> _Course:
        for left in range(self._config.warmup_samples - 1, -1, -1):
            yield from self._sample(Trial("warmup", self._incumbent, note=f"{left} remaining"))
        yield from self._sample(Trial("baseline", self._incumbent))
        if self._recalled is not None:
            yield from self._compare(self._recalled, "verify")
            if not self._is_refuted() or self._pairs_left() < COMPARABLE:
                return
            self.outcome = None
        self._space = self._space.within(self._record.visits[-1].sample.bytes_per_step)
        while (yield from self._search()):
            pass
        if not self._record.candidates:
            self._keep(f"no significant gain: no candidate was measured; {self._search_end}")
            return
        answer = yield from self._ask(anew=True)
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
            yield from self._compare(best.values, "confirm")

    def _sample(self, trial: Trial) -> _Course:
        yield trial
        self._record.close()

    def _search(self) -> _Compared:
        """Measure candidates until one is promoted (True: go on) or the search ends."""
        while self._tried < self._candidates:
            if self._hurry is not None or self._pairs_left() < COMPARABLE:
                self._search_end = self._hurry or self._too_few_pairs()
                return False
            if self._harm.ends_search:
                self._search_end = (
                    f"slow candidates had cost {self._harm.steps:.0f} steps' time "
                    f"of the {self._harm.limit:.0f} allowed"
                )
                return False
            racing = self._next_queued()
            if not racing:
                answer = yield from self._ask()
                if self._hurry is not None:
                    continue
                worth = max(self._config.min_gain, WORTH * self._provable())
                if answer.expected_gain < worth:
                    self._search_end = f"the model expects less than {_percent(worth)} more"
                    return False
                racing = self._proposed(answer)
                if not racing:
                    self._search_end = "the model proposes nothing else"
                    return False
            self._tried += len(racing)
            far_better = yield from self._round(racing)
            self._record.close()
            if far_better is not None:
                if (yield from self._compare(far_better, "confirm")):
                    return True
                if not self._findings:
                    self.outcome = None  # it was only about this candidate
        return False

    def _round(self, racing: list[Values]) -> Generator[Trial, Sample | None, Values | None]:
        """Alternate candidates with the incumbent; promote a far better one at once.

        A candidate gets no further turns if it was given up, if another one is surely better, or if
        it is known well enough.
        """
        incumbent = Trial("search", self._incumbent, note="incumbent", visit=True)
        yield incumbent
        for turn in range(MOST_TURNS):
            most = self._most_turns()
            if turn >= most:
                break
            is_next = self._queue == [] and self._tried < self._candidates
            if turn == min(ASK_BEHIND, most - 1) and is_next and not self._is_posed:
                self._pose()
            for values in racing if turn % 2 == 0 else racing[::-1]:
                sample = yield Trial("search", values, candidate=True, visit=True)
                assert sample is not None
                if sample.abandoned:
                    racing = [one for one in racing if one != values]
                if self._harm.ends_search:
                    break
            yield incumbent
            if self._hurry is not None or self._harm.ends_search or not racing:
                break
            if turn + 1 < LEAST_TURNS:
                continue
            for values in racing:
                if self._is_far_better(values):
                    return values
            racing = self._still_open(racing)
            if not racing:
                break
        return None

    def _most_turns(self) -> int:
        """MOST_TURNS, or fewer if visits have so many steps that a candidate would have too many.

        Some visits have more steps than they need, because more had passed when they were looked
        at; the shortest of the incumbents' shows how many they need.
        """
        steps = min(
            one.sample.steps for one in self._record.visits if one.is_incumbent and one.trial.visit
        )
        return max(LEAST_TURNS, min(MOST_TURNS, MOST_TURNS * self._config.visit_steps // steps))

    def _still_open(self, racing: list[Values]) -> list[Values]:
        """The candidates that are worth further turns."""
        best, best_error = self._record.baseline, 0.0
        for candidate in self._record.candidates:
            y, error = self._record.observe(candidate)
            if y + error < best:
                best, best_error = y, error
        found = [(values, *self._seen(values)) for values in racing]
        return [
            values
            for values, y, error in found
            if error > PRECISE and y - best <= LEFT_BEHIND * math.hypot(error, best_error)
        ]

    def _seen(self, values: Values) -> tuple[float, float]:
        candidate = self._record.find(values)
        assert candidate is not None
        return self._record.observe(candidate)

    def _pairs_left(self) -> int:
        return self._config.max_pairs - self._pairs

    def _too_few_pairs(self) -> str:
        return f"{self._pairs} of the {self._config.max_pairs} pairs were used up before"

    def _used_up(self) -> str:
        return f"slow candidates had used up the limit of {self._harm.limit:g} steps' time"

    def _is_far_better(self, values: Values) -> bool:
        y, error = self._seen(values)
        return self._record.baseline - y > PROMOTE_GAIN + PROMOTE_ERRORS * error

    def _compare(self, values: Values, phase: str) -> _Compared:
        """Compare with the incumbent in fresh pairs of visits; True: these are the new incumbent.

        If too few pairs are left for that, the incumbent stays.
        """
        if self._pairs_left() < COMPARABLE:
            self._keep(f"no comparison: {self._too_few_pairs()}")
            return False
        compared = Comparison(
            self._record.noise(),
            self._record.usual_error(),
            self._config.confidence,
            self._config.min_gain,
            self._pairs_left() - REPEATS,
        )
        finding = None
        while finding is None:
            pair = {}
            first = compared.candidate_first
            for is_candidate in (first, not first):
                tried = values if is_candidate else self._incumbent
                note = compared.words()
                sample = yield Trial(phase, tried, is_candidate, note=note, visit=True)
                assert sample is not None
                if sample.abandoned:
                    self._pairs += len(compared.differences) + compared.repeats + 1
                    slower = "the candidate was clearly slower"
                    why = self._used_up() if self._harm.at_limit else slower
                    self._keep(f"no significant gain: {why}")
                    return False
                pair[is_candidate] = sample
            is_last = compared.is_last
            finding = compared.add(pair[True], pair[False])
            if finding is not None or (is_last and not compared.is_last):
                self._record.close()
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
        """Whether the last comparison showed its candidate to be no faster."""
        found = self.outcome
        assert found is not None
        if found.adopted:
            return False
        if found.gain is None or found.margin is None:
            return True  # abandoned
        return found.gain + found.margin < self._config.min_gain

    def _provable(self) -> float:
        """The gain that the comparison would find half of the time."""
        noise = self._record.noise().error
        sure = inference.student_quantile(self._config.confidence, math.inf)
        return sure * noise * math.sqrt(2 / max(1, self._pairs_left() - REPEATS))

    def _pose(self) -> None:
        left = self._candidates - self._tried
        self._request, self._is_posed = self._question(max(1, min(ROUND, left))), True

    def _ask(self, anew: bool = False) -> Generator[Trial, Sample | None, Answer]:
        """The model's answer; `anew`: one that includes all visits."""
        while True:
            if not self._is_posed:
                self._pose()
                anew = False
            while self._answer is None:
                yield Trial("search", self._incumbent, waiting=True)
            answer, self._answer, self._is_posed = self._answer, None, False
            if not anew:
                return answer

    def _proposed(self, answer: Answer) -> list[Values]:
        found: list[Values] = []
        for values in ({**self._incumbent, **proposal} for proposal in answer.proposals):
            if values != self._incumbent and values not in found:
                found.append(values)
        return found

    def _advance(self, sample: Sample | None) -> None:
        try:
            self._trial = self._course.send(sample)
        except StopIteration:
            self._record.close()
            self._trial = None

    # -- knowledge --

    def _first_candidates(self) -> list[Values]:
        """The candidates before the model is first asked; it needs at least one measured.

        Probes show the effect of each setting alone; each changes the best settings at that time.
        """
        most = max(1, int(PROBES * self._candidates))
        return self._space.probes(self._incumbent, PROBE_CELLS, self._config.seed)[:most]

    def _next_queued(self) -> list[Values]:
        """The next round's candidates; the defaults alone if the run began with other settings."""
        if self._defaults != self._start and self._record.find(self._defaults) is None:
            return [self._defaults]
        if self._queue is None:
            self._queue = self._first_candidates()
        found: list[Values] = []
        leader = self._leader()
        most = min(ROUND, self._candidates - self._tried)
        while self._queue and len(found) < most:
            values = self._space.allowed({**leader, **self._queue.pop(0)})
            is_known = values in found or self._record.find(values) is not None
            if values != self._incumbent and not is_known:
                found.append(values)
        return found

    def _leader(self) -> Values:
        """The fastest that was measured, if it is surely faster; else the incumbent."""
        best, values = 0.0, self._incumbent
        for candidate in self._record.candidates:
            y, error = self._record.observe(candidate)
            gain = self._record.baseline - y - LEADS * error
            if gain > best:
                best, values = gain, candidate.values
        return values

    def _question(self, count: int = 1) -> Request:
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
        return Request(
            self._space.to_json(), rows, self._config.seed, self._config.noise, at, count
        )

    def _best(self, answer: Answer) -> _Best | None:
        return max(self._offered(answer), key=lambda best: best.gain, default=None)

    def _offered(self, answer: Answer) -> list[_Best]:
        # means[0] is the first incumbent's; candidates follow in the order of the question.
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
        """End with the present incumbent, which may have been adopted before."""
        if self._findings:
            gains, margins = zip(*((one.gain, one.margin) for one in self._findings), strict=True)
            gain, margin = as_shares(sum(gains), math.hypot(*margins), faster=True)
            verdict = (
                f"adopted: {_percent(gain)} ± {_percent(margin)} less time a step "
                f"than the current settings, at {self._sure()}"
            )
        sample = together(self._record.of(self._incumbent))
        self.outcome = Outcome(
            dict(self._incumbent), bool(self._findings), verdict, sample, gain, margin
        )

    def _sure(self) -> str:
        return f"{100 * self._config.confidence:g} % confidence"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
