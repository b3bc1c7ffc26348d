"""Tuning of a running job: the tuner's thread on rank 0, between the engine and the log.

The thread reads the engine's steps, joins parts of steps, collects them into samples, and gives the
engine the settings that the tuner wants to measure. It sleeps while there is nothing to read, and
ends with the tuning. `online` starts it with the engine of this process.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hvdtune.autotune.memory.recall import Found, Memory
from hvdtune.autotune.messages import Messenger
from hvdtune.autotune.report import log, words
from hvdtune.autotune.search import space
from hvdtune.autotune.search.space import Space, Value, Values
from hvdtune.autotune.search.tuner import Measurement, Outcome, Tuner, TunerConfig
from hvdtune.autotune.session.client import ServiceClient, ServiceError
from hvdtune.autotune.session.ports import Engine, Optimiser, Writer
from hvdtune.autotune.statistics.cycle import Joiner, Part
from hvdtune.autotune.statistics.cycle import Step as WholeStep
from hvdtune.autotune.statistics.harm import harm_limit_steps
from hvdtune.autotune.statistics.score import LEAST_STEPS, Sample, Window, visit_steps
from hvdtune.autotune.statistics.watch import Watch
from hvdtune.settings.knobs import KNOBS, Settings

SETTLE_STEPS = 2
READ_TIMEOUT_S = 0.1  # how long `stop` may have to wait for the thread
PAUSE_S = 0.02  # steps shorter than this are read several at a time, to leave the training alone
# Checks of the settings in force, and seconds between them, until they are what others want.
IN_FORCE_LOOKS, IN_FORCE_S = 20, 0.01
GIVE_WAY_TRIES = 3
SLOW_START_S = 3.0  # a longer start of the optimiser is reported
CLEAR_MARGIN = 0.05  # of the gain; "nothing is faster" is remembered only if it is known this well
USED_UP = 0.9  # of the limit: the rest is too little for a search
WATCH_PAUSE_S = 0.2  # between reads of steps when tuning is over
WATCH_SAMPLES = 8  # candidates of a search that was started by a change
WATCH_SEARCHES = 3  # at most; a job that changes all the time is not followed
_LOGGED = (
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "torus_allreduce",
    "cache_capacity",
)


class Session:
    """One run of the tuner, from the engine's start to its end or the tuner's.

    Construct it and call `run` in a thread; calling `stop_soon` in another one makes `run` return.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        size: int,
        messenger: Messenger,
        writer: Writer | None = None,
        start_optimiser: Callable[[Space], Optimiser] = ServiceClient,
        memory: Memory | None = None,
        before: Found | None = None,
        harm_steps: float = 0.0,
    ) -> None:
        """`before` and `harm_steps`: findings and cost of an earlier session of this process."""
        self._engine = engine
        self._settings = settings
        self.size = size
        self._messenger = messenger
        self._writer = writer
        self._start_optimiser = start_optimiser
        self._memory = memory
        self._before = before
        self._earlier: Found | None = None  # found before the change that began this search
        self._found: Found | None = None
        self._joiner = Joiner()
        self._is_told = False  # the end of the current search has been reported
        self._optimiser: Optimiser | None = None
        self._computing_ms: float | None = None  # None: there was no optimiser
        self._started_s: float | None = None  # how long the optimiser's process took to start
        self._is_hurried = False  # there is no time left to search
        self._missed = ""  # what was skipped because the optimiser's process had not started
        self._stop = threading.Event()
        self._why_stopped = "training ended"
        self._in_force: Values = dict(engine.current())
        self._space = space.build(settings, self._in_force)
        self._harm_before = harm_steps
        config = _config(settings, harm_steps)
        self._tuner = Tuner(
            self._space, self._in_force, space.shipped_defaults(self._space), config
        )
        self._steps = max(LEAST_STEPS, settings.autotune_steps_per_sample)
        self._first = dict(self._in_force)
        self._searches = 1
        self._epoch: int | None = None  # unknown before the first step
        self._is_overtaken = False  # somebody else changed settings when the session wanted to
        self._typical_bytes = 0.0
        self._window = Window(0, self._steps, 0)
        self._steps_seen = 0
        self._parts_seen = 0
        self._is_unfinished = True
        self._has_failed = False
        self._trial_ns = 0  # since the trial's settings were put into force
        self._began = time.monotonic()

    def stop_soon(self, why: str = "training ended") -> None:
        """Make `run` return within READ_TIMEOUT_S. May be called from any thread."""
        self._why_stopped = why
        self._stop.set()

    def end_search_soon(self, reason: str) -> None:
        """End the search, but still compare. May be called from any thread."""
        self._is_hurried = True
        self._tuner.end_search(reason)

    @property
    def unfinished(self) -> bool:
        """Whether `run` has returned before the tuner was finished, or the tuner has failed."""
        return self._is_unfinished or self._has_failed

    @property
    def harm_steps(self) -> float:
        """What slow candidates have cost so far, in steps' time, including earlier sessions."""
        return self._harm_before + self._tuner.harm_steps

    @property
    def result(self) -> Found | None:
        """What the next session of the same job may begin with: adopted or confirmed settings."""
        outcome = self._tuner.outcome
        if outcome is None or not (outcome.adopted or self._is_clear(outcome)):
            return self._before or self._earlier
        time_ms = outcome.sample.step_time_ms if outcome.sample else None
        return Found(dict(outcome.values), "an earlier start in this process", time_ms)

    def run(self) -> None:
        """Tune until done, stopped, or the engine has stopped. Raises only what signals raise."""
        try:
            self._messenger.info(f"Autotuner: {log.tunable_params()}")
            self._tune()
            while self._settings.autotune_watch and self._has_changed():
                self._begin_again()
                self._tune()
        except self._engine.EngineStopped:
            self._unfinished()
        except (KeyboardInterrupt, SystemExit):
            # A signal to `hvdtune tune`, whose main thread this is.
            self._why_stopped = "it was interrupted"
            with contextlib.suppress(Exception):
                self._unfinished()
            raise
        except Exception as error:
            if self._stop.is_set():
                # The engine stopped during a call, as was expected soon.
                self._unfinished()
                return
            if self._is_told:
                self._messenger.warn(f"Autotuner: watching ended: {type(error).__name__}: {error}")
                return
            # Errors here must not affect training.
            self._messenger.warn(f"Autotuner: tuning ended: {type(error).__name__}: {error}")
            self._has_failed = True
            self._tuner.abort("tuning failed")
            self._finish_quietly()
        finally:
            self._dismiss_optimiser()
            if self._writer is not None:
                self._writer.close()

    def _tune(self) -> None:
        reason = self._why_not()
        if reason:
            self._tuner.abort(reason)
        else:
            self._start()
        while self._tuner.trial is not None:
            if self._stop.is_set():
                self._unfinished()
                return
            parts = self._engine.read_steps(READ_TIMEOUT_S)
            if parts and not self._tuner.history:
                self._widen()
            if self._epoch is None and parts:
                self._expect(parts[0].epoch)
            newest = max((part.epoch for part in parts), default=0)
            if self._epoch is not None and newest > self._epoch:
                self._give_way(newest)
                break
            # The epoch of a change made before the first step was read has already begun.
            if self._is_overtaken and parts and self._known() != self._in_force:
                self._give_way(parts[-1].epoch)
                break
            self._parts_seen += len(parts)
            for part in parts:
                self._take(self._joiner.add(part))
            try:
                self._consult()
            except ServiceError as error:
                if not self._do_without(str(error)):
                    break
            self._measure()
            self._pause(parts)
        if self._tuner.outcome is not None:
            self._finish(self._tuner.outcome)

    def _take(self, steps: Sequence[WholeStep]) -> None:
        """Take steps of the run, in order."""
        self._steps_seen += len(steps)
        for step in steps:
            self._window.add(step)
            if 0 < step.duration_ns < math.inf:
                self._trial_ns += step.duration_ns
            if self._memory is not None:
                self._memory.add(step)

    def _widen(self) -> None:
        """Add settings that only the first steps show to act, such as those of batches with NCCL.

        Nothing has been measured before, so tuning begins again.
        """
        now = self._engine.peek()
        more = {key: value for key, value in now.items() if key not in self._in_force}
        if not more:
            return
        self._in_force |= more
        self._first = dict(self._in_force)
        self._space = space.build(self._settings, self._in_force)
        config = _config(self._settings, self._harm_before)
        self._tuner = Tuner(
            self._space, self._in_force, space.shipped_defaults(self._space), config
        )
        if self._epoch is not None:
            self._expect(self._epoch)
        self._dismiss_optimiser()
        self._start()

    def _known(self) -> Values:
        """The settings in force, as far as this session knows them."""
        now = self._engine.current()
        return {key: now[key] for key in self._in_force}

    def _expect(self, epoch: int) -> None:
        self._epoch = epoch
        self._window = Window(epoch, self._steps, 0)

    def _give_way(self, epoch: int) -> None:
        """Somebody else has changed settings: theirs stay, and tuning ends.

        All other settings return to their values at the start: a trial's are not wanted, and
        earlier gains were measured together with the settings that are now changed.
        """
        self._epoch = epoch
        now = self._known()
        for _ in range(IN_FORCE_LOOKS):  # a step may arrive before its settings are known
            if now != self._in_force or self._stop.wait(IN_FORCE_S):
                break
            now = self._known()
        changed = words.changes(self._in_force, now)
        for _ in range(GIVE_WAY_TRIES):  # others may go on changing settings
            asked = self._engine.asked()
            wanted = {**now, **self._tuner.incumbent, **asked}
            if wanted == now or not asked:
                break
            begun = self._engine.apply(wanted)
            if begun > self._epoch:
                self._epoch, now = begun, wanted
        self._in_force = now
        reason = f"the program has changed settings itself ({changed or 'to the same'})"
        self._tuner.abort(reason)
        kept = {key: now[key] for key in self._space.keys}
        self._tuner.outcome = Outcome(kept, False, f"kept the current settings: {reason}")

    # -- watching --

    def _has_changed(self) -> bool:
        """Wait until the step time has changed; False if there is no reason to (any more)."""
        if self._why_not() or self._tuner.outcome is None or self._searches > WATCH_SEARCHES:
            return False
        if self._is_limit_used_up():
            self._messenger.result(
                f"watching ended: slow candidates have cost {self.harm_steps:.0f} steps' time of "
                f"the {harm_limit_steps(self._settings):.0f} that they may cost in a run"
            )
            return False
        watch = Watch()
        while not self._stop.is_set():
            try:
                parts = self._engine.read_steps(READ_TIMEOUT_S)
            except self._engine.EngineStopped:
                return False
            for step in (step for part in parts for step in self._joiner.add(part)):
                change = watch.add(step)
                if change is not None:
                    self._messenger.result(f"{change.words()}: searching again")
                    return True
            self._stop.wait(WATCH_PAUSE_S)
        return False

    def _begin_again(self) -> None:
        """Start a new, bounded search from the settings in force; the original ones are tried."""
        self._earlier = self.result
        self._searches += 1
        self._harm_before = self.harm_steps
        self._is_told, self._is_unfinished = False, True
        self._dismiss_optimiser()
        self._is_hurried, self._missed = False, ""
        self._computing_ms = self._started_s = None
        config = _config(self._settings, self._harm_before)
        config = replace(config, max_samples=min(config.max_samples, WATCH_SAMPLES))
        self._tuner = Tuner(self._space, self._in_force, self._first, config)
        self._window = Window(self._epoch or 0, self._steps, 0)
        self._typical_bytes = 0.0
        self._trial_ns = self._steps_seen = self._parts_seen = 0
        self._began = time.monotonic()
        self._found = self._before = None
        if self._memory is not None:
            self._memory.begin_again()

    def _is_limit_used_up(self) -> bool:
        return self.harm_steps > USED_UP * harm_limit_steps(self._settings)

    def _why_not(self) -> str | None:
        if not self._space.dimensions:
            return "every tunable setting is fixed"
        if self.size == 1:
            return "there is one rank, so there is no communication to tune"
        if self._searches == 1 and self._harm_before and self._is_limit_used_up():
            return "slow candidates of earlier starts have used up what they may cost in a run"
        return None

    def _start(self) -> None:
        try:
            self._optimiser = self._start_optimiser(self._space)
            self._computing_ms = 0.0
        except ServiceError as error:
            self._do_without(str(error))

    def _consult(self) -> None:
        """Pass questions and answers between the tuner and the optimiser."""
        answer = None
        if self._optimiser is not None:
            answer = self._optimiser.poll()
            self._computing_ms = self._optimiser.computing_ms
            self._started_s = self._optimiser.started_s
        if answer is not None:
            waited = self._tuner.trial is not None and self._tuner.trial.waiting
            self._tuner.offer(answer)
            if waited:
                self._begin()
        elif self._window.complete and self._tuner.waited():
            self._dismiss_optimiser()  # its answer is no longer needed
            self._begin()
        request = self._tuner.take_request()
        if request is not None and self._optimiser is not None:
            self._optimiser.ask(request)

    def _do_without(self, error: str) -> bool:
        """The optimiser has failed: end tuning, unless (True) a comparison can still decide."""
        if self._tuner.needs_model:
            self._messenger.warn(f"Autotuner: tuning ended: {error}")
            self._has_failed = True
            self._tuner.abort(error)
            return False
        self._messenger.warn(f"Autotuner: {error}; no further candidates are measured")
        self._tuner.end_search(error)
        self._dismiss_optimiser()
        return True

    def _dismiss_optimiser(self) -> None:
        if self._optimiser is not None:
            self._missed = self._what_is_missing() if self._is_hurried else ""
            self._optimiser.close()
            self._optimiser = None

    def _measure(self) -> None:
        """End the current trial if enough is known about it."""
        trial = self._tuner.trial
        if trial is None or trial.waiting:
            return
        abandon = False
        if not self._window.complete:
            if not trial.candidate:
                return
            so_far = self._window.sample() if self._window.kept else None
            abandon = self._tuner.hopeless(self._window.seen_ns, so_far)
            if not abandon:
                return
        sample = replace(self._window.sample(abandon), seconds=self._trial_ns / 1e9)
        if not trial.candidate:
            self._typical_bytes = sample.bytes_per_step
        if trial.phase == "baseline":
            self._recall(sample)
        for measurement in self._tuner.report(sample):
            self._record(measurement)
        if self._found is not None and self._found.values == self._tuner.incumbent:
            self._tuner.abort(f"they are those remembered from {self._found.origin}")
        self._begin()

    def _recall(self, baseline: Sample) -> None:
        """Look for an earlier run's findings, now that the kind of job is known."""
        found = None
        if self._memory is not None:
            uses_nccl = "num_nccl_streams" in self._engine.peek()
            found = self._memory.recall(self._tuner.incumbent, uses_nccl)
        keys = self._tuner.incumbent.keys()
        if self._before is not None and self._before.values.keys() >= keys:
            # The newest findings; what another process found in force includes fixed settings.
            found = replace(self._before, values={key: self._before.values[key] for key in keys})
        if found is None:
            return
        if found.values != self._tuner.incumbent:
            self._tuner.recall(found.values)
        elif not found.is_like(baseline.step_time_ms):
            return  # only the same job may end tuning without any comparison
        self._found = found

    def _begin(self) -> None:
        """Apply the next trial's settings and start collecting."""
        trial = self._tuner.trial
        if trial is not None:
            settle = self._put_into_force(trial.values)
            self._window = Window.of(
                self._epoch or 0, self._steps, settle, self._typical_bytes, trial.visit
            )
            self._trial_ns = 0

    def _put_into_force(self, values: Values) -> int:
        """Apply the differences. Returns how many steps must settle."""
        changes = {key: value for key, value in values.items() if self._in_force[key] != value}
        self._is_overtaken = False
        if not changes:
            return 0
        # Give all of them: the engine fills gaps from the settings in force, which do not include a
        # change that is still under way.
        wanted = {**self._in_force, **changes}
        epoch = self._engine.apply(wanted)
        if self._epoch is not None and epoch <= self._epoch:
            self._is_overtaken = True  # steps of the other's epoch will follow
            return SETTLE_STEPS
        self._epoch = epoch
        self._in_force = wanted
        return SETTLE_STEPS

    def _pause(self, parts: Sequence[Part]) -> None:
        if not parts:
            return
        step_ns = parts[-1].duration_ns
        if step_ns < 1e9 * PAUSE_S:
            left_s = max(step_ns, self._window.missing_ns(step_ns)) / 1e9
            self._stop.wait(min(PAUSE_S, left_s))

    # -- telling --

    def _values(self, tried: Values | None = None) -> dict[str, Value]:
        known = {key: getattr(self._settings, key) for key in _LOGGED} | self._in_force
        return known | (tried or {})

    def _record(self, measurement: Measurement) -> None:
        trial, sample = measurement.trial, measurement.sample
        note = trial.note
        if sample.abandoned:
            why = "the limit of harm was reached" if measurement.at_limit else "clearly slower"
            note = f"abandoned: {why}" + (f" ({trial.note})" if trial.note else "")
        self._write(sample, measurement.number, trial.phase, note, tried=trial.values)
        if trial.phase == "warmup":
            self._messenger.info(f"Autotuner: Warming up ({trial.note})")
        else:
            values = self._values(trial.values)
            self._messenger.info(f"Autotuner: {log.message(values, sample.score)}")

    def _record_rest(self) -> None:
        for measurement in self._tuner.rest():
            self._record(measurement)

    def _finish(self, outcome: Outcome) -> None:
        self._put_into_force(outcome.values)
        if self._is_overtaken:
            self._give_way(self._epoch or 0)
        missed = self._missed or (self._what_is_missing() if self._is_hurried else "")
        self._conclude(self._tuner.outcome or outcome, missed)
        self._is_unfinished = False

    def _conclude(self, outcome: Outcome, ended: str = "") -> None:
        self._record_rest()
        whole = f"{outcome.verdict}; {ended}" if ended else outcome.verdict
        self._write(outcome.sample, len(self._tuner.history) + 1, "final", whole, outcome.adopted)
        score = outcome.sample.score if outcome.sample else 0.0
        self._messenger.info(f"Autotuner: Best params {log.message(self._values(), score)}")
        self._messenger.result(self._sentence(outcome, whole, ended))
        self._is_told = True

    def _cost(self) -> list[str]:
        cost = [f"{self._steps_seen} steps", f"{time.monotonic() - self._began:.1f} s"]
        if self._computing_ms is not None:
            computing = f"{self._computing_ms / 1e3:.1f} s"
            started = self._started_s or 0.0
            slowly = f", which took {started:.1f} s to start" if started > SLOW_START_S else ""
            cost.append(f"optimiser {computing} in its own process{slowly}")
        return cost

    def _sentence(self, outcome: Outcome, whole: str, ended: str) -> str:
        start, stored = self._tuner.incumbent, None
        verified = self._found is not None and self._tuner.searched == 0
        # Store nothing if nothing was learned because there was nothing to compare. Remembered
        # settings are not wrong just because noise prevented their verification.
        # A new search after a disturbance, if without a gain, says nothing about the rest of the
        # run. If noise makes the outcome uncertain, the next run should search again.
        is_clear = self._is_clear(outcome) and not verified and self._searches == 1
        is_news = outcome.adopted or is_clear
        lost_in_noise = not (is_news or verified) and self._searches == 1 and outcome.margin
        if self._memory and is_news:
            seconds = time.monotonic() - self._began
            told = replace(outcome, verdict=whole)
            stored = self._memory.remember(told, start, self._steps_seen, seconds)
        return words.sentence(
            outcome.verdict,
            # The verdict names what the program itself has changed.
            changed=words.changes(start, outcome.values) if outcome.adopted else "",
            ended=ended,
            origin=self._found.origin if self._found and verified and outcome.adopted else None,
            elsewhere=self._found.elsewhere if self._found else None,
            cost=self._cost(),
            stored=stored,
            unsure=CLEAR_MARGIN if self._memory and lost_in_noise else None,
            pins=words.as_environment(outcome.values) if outcome.adopted else None,
        )

    def _is_clear(self, outcome: Outcome) -> bool:
        return outcome.margin is not None and outcome.margin <= CLEAR_MARGIN

    def _finish_quietly(self) -> None:
        """Return to the settings tuning began with, if the engine still can."""
        try:
            if self._tuner.outcome is not None:
                self._finish(self._tuner.outcome)
        except Exception as error:
            self._messenger.warn(
                f"Autotuner: the settings in force are {self._in_force}; going back failed: {error}"
            )

    def _what_is_missing(self) -> str:
        """What could not be done because the optimiser's process has not started yet."""
        if self._optimiser is None or self._optimiser.started_s is not None:
            return ""
        text = "the optimiser's process had not started by then"
        if any(one.trial.candidate for one in self._tuner.history):
            return f"{text}, so there was no search"
        return f"{text}, so only the current settings were measured"

    def _unfinished(self) -> None:
        if self._is_told:
            return  # it was only watching
        self._take(self._joiner.flush())
        self._record_rest()
        trial, outcome = self._tuner.trial, self._tuner.outcome
        phase = trial.phase if trial is not None else "final"
        samples = words.samples(len(self._tuner.history))
        why = f"tuning was not finished: {self._why_stopped} during {phase} after {samples}"
        missed = self._what_is_missing()
        why += f"; {missed}" if missed else ""
        if outcome is not None and outcome.adopted:
            # The incumbent was shown to be faster: remember it for the next run, even if this one
            # was trying something else when it ended.
            self._in_force = {**self._in_force, **outcome.values}
            self._conclude(outcome, why)
            return
        in_force = ", ".join(
            f"{KNOBS[key].env} {words.value_words(key, value)}"
            for key, value in self._in_force.items()
        )
        verdict = f"{why}; these settings were in force: {in_force}"
        if not self._parts_seen:
            verdict += (
                "; no training step was seen: a step ends when a tensor of the global process set "
                "is allreduced again under its name"
            )
        last: Sample | None = self._window.sample() if self._window.kept else None
        self._write(last, len(self._tuner.history) + 1, "final", verdict, False)
        self._messenger.result(words.sentence(verdict, cost=self._cost()))
        self._is_told = True

    def _write(
        self,
        sample: Sample | None,
        number: int,
        phase: str,
        note: str,
        accepted: bool | None = None,
        tried: Values | None = None,
    ) -> None:
        if self._writer is not None:
            self._writer.write(
                log.Row(
                    values=self._values(tried),
                    sample=sample,
                    number=number,
                    phase=phase,
                    epoch=self._epoch or 0,
                    decision=note,
                    seconds=sample.seconds if tried and sample else self._trial_ns / 1e9,
                    accepted=accepted,
                )
            )


def _config(settings: Settings, harm_before: float = 0.0) -> TunerConfig:
    """`harm_before`: the cost of slow candidates so far."""
    return TunerConfig(
        warmup_samples=settings.autotune_warmup_samples,
        max_samples=settings.autotune_bayes_opt_max_samples,
        harm_limit_steps=max(0.0, harm_limit_steps(settings) - harm_before),
        visit_steps=visit_steps(settings.autotune_steps_per_sample),
        noise=settings.autotune_gaussian_process_noise,
        seed=settings.autotune_seed,
    )
