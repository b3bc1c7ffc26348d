"""A run's access to the store: finds its own profile, and remembers its outcome.

If anything goes wrong with the store, there is one warning, and tuning goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

from hvdtune.autotune.memory import identity, store
from hvdtune.autotune.memory.identity import CountedStep, Signature
from hvdtune.autotune.memory.store import Profile, Store, StoreError, key_of
from hvdtune.autotune.messages import Messenger
from hvdtune.autotune.search.space import Value, Values
from hvdtune.autotune.search.tuner import Outcome
from hvdtune.settings.knobs import KNOBS, Settings
from hvdtune.version import __version__

LIKE = 0.25  # of the step time: a larger difference says that something has changed

Describe = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """An earlier run's settings, with the time and the program that found them, in words.

    `step_time_ms` is the time of a step with them then; None if unknown. `elsewhere` are further
    settings found that a running job cannot change: (in force, found) by key.
    """

    values: Values
    origin: str
    step_time_ms: float | None = None
    elsewhere: Mapping[str, tuple[Value, Value]] = field(default_factory=dict)

    def is_like(self, step_time_ms: float) -> bool:
        """Whether a step takes about as long as then."""
        then = self.step_time_ms
        return then is not None and abs(step_time_ms - then) <= LIKE * then


class Memory:
    """The memory of one run. Feed it the first steps, `recall` once, `remember` at the end.

    `describe(work, …)` makes the identity from a step's work (`identity.describe`); `warn` takes a
    sentence. Without `uses`, earlier runs are ignored, because the user has asked for a search.
    `standing` are this run's values of the settings that only a new start changes, by key.
    """

    def __init__(
        self,
        store: Store,
        describe: Describe,
        program: str,
        warn: Callable[[str], None],
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        uses: bool = True,
        standing: Mapping[str, Value] | None = None,
    ) -> None:
        self._store: Store | None = store
        self._describe = describe
        self._program = program
        self._warn = warn
        self._now = now
        self._uses = uses
        self._standing = dict(standing or {})
        self._recalled: Profile | None = None
        self._signature = Signature()
        self._identity: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None

    def add(self, step: CountedStep) -> None:
        """Take a step of the run's own settings; has no effect after `recall`."""
        if self._identity is None:
            self._signature.add(step)

    def begin_again(self) -> None:
        """The training has changed: find out again what kind of job it is.

        The profile of its previous kind is not recalled: that has just failed.
        """
        self._before, self._identity = self._identity, None
        self._signature = Signature()

    def recall(self, current: Mapping[str, Value], uses_nccl: bool = False) -> Found | None:
        """The settings found for such a job before, or None; with all keys of `current`.

        Settings that the profile lacks, because they could not be moved then, keep their values.
        `uses_nccl`: NCCL carries the tensors of this run.
        """
        work = self._signature.work()
        if work is None or self._store is None:
            return None
        self._identity = self._describe(work, **({"backend": "NCCL"} if uses_nccl else {}))
        if self._identity == self._before:
            return None
        try:
            profile = self._find(self._store.read(), self._identity)
        except StoreError as error:
            self._warn(f"Autotuner: {error}; nothing is remembered from earlier runs")
            return None
        if profile is None or not self._uses:
            return None
        self._recalled = profile
        values = {key: profile.values.get(key, value) for key, value in current.items()}
        elsewhere = {
            key: (value, profile.values[key])
            for key, value in self._standing.items()
            if key not in current and profile.values.get(key, value) != value
        }
        return Found(values, origin(profile), profile.step_time_ms, elsewhere)

    def _find(
        self, profiles: Mapping[str, Profile], described: Mapping[str, Any]
    ) -> Profile | None:
        """The profile of this job; or that of `hvdtune tune`, if the user has now fixed the values
        that it found."""
        profile = profiles.get(key_of(described))
        if profile is not None:
            return profile
        fixed = {key: value for key, value in described["fixed"].items() if key in self._standing}
        if not fixed:
            return None
        free = {key: value for key, value in described["fixed"].items() if key not in fixed}
        profile = profiles.get(key_of({**described, "fixed": free}))
        if profile is None or any(profile.values.get(key) != fixed[key] for key in fixed):
            return None
        return profile

    def remember(
        self, outcome: Outcome, start: Mapping[str, Value], steps: int, seconds: float
    ) -> str | None:
        """Store the outcome; returns where, in words, or None."""
        if self._store is None or self._identity is None:
            return None
        # Keep settings that only `hvdtune tune` can find.
        before, kept = self._recalled, {}
        if before is not None and before.identity == self._identity:
            kept = {key: value for key, value in before.values.items() if key in self._standing
                    and key not in outcome.values}  # fmt: skip
        profile = Profile(
            identity=self._identity,
            values={**outcome.values, **kept},
            start={**start, **{key: before.start[key] for key in kept if before}},
            verdict=outcome.verdict,
            when=self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            program=self._program,
            gain=outcome.gain,
            margin=outcome.margin,
            step_time_ms=outcome.sample.step_time_ms if outcome.sample else None,
            steps=steps,
            seconds=round(seconds, 3),
        )
        try:
            moved = self._store.put(profile)
        except StoreError as error:
            self._warn(f"Autotuner: {error}; the outcome is not remembered")
            return None
        if moved is not None:
            self._warn(f"Autotuner: {self._store.path} is not an autotune store; moved to {moved}")
        return f"{key_of(self._identity)} in {self._store.path}"


def origin(profile: Profile) -> str:
    """The time and the program of a profile: "2026-01-31 12:00 UTC, train.py"."""
    when = profile.when.replace("T", " ")[:16] + " UTC"
    return f"{when}, {profile.program}" if profile.program else when


def fixed_settings(settings: Settings) -> dict[str, Value]:
    """The tunable settings that the user has fixed, by key."""
    return {
        key: getattr(settings, key)
        for key, knob in KNOBS.items()
        if knob.tunable and settings.is_fixed(key)
    }


def engine_settings(settings: Settings) -> dict[str, object]:
    """The settings that are never tuned but affect how the tuned ones act, by key."""
    keys = ("overlap", "reduction_threads", "spin_us", "writing")
    return {key: getattr(settings, key) for key in keys}


def open_memory(
    settings: Settings,
    messenger: Messenger,
    program: str,
    size: int,
    local_size: int,
    cpus: int,
    uses: bool = True,
) -> Memory | None:
    """The memory of a run of `program`; None if there is none, or (with a warning) if it fails.

    `size` ranks, `local_size` of them on this host, which has `cpus` usable CPUs; `uses` as in
    `Memory`.
    """
    try:
        kept = store.open_store(settings.autotune_store)
    except store.StoreError as error:
        messenger.warn(f"Autotuner: {error}; nothing is remembered")
        return None
    if kept is None:
        return None
    describe = partial(
        identity.describe,
        size=size,
        local_size=local_size,
        cpus=cpus,
        version=__version__,
        fixed=fixed_settings(settings),
        engine=engine_settings(settings),
        backend={"mpi": "MPI", "gloo": "Gloo"}.get(settings.cpu_operations or "", "shared memory"),
    )
    standing = {key: getattr(settings, key) for key, knob in KNOBS.items() if knob.tuned_offline}
    return Memory(kept, describe, program, messenger.warn, uses=uses, standing=standing)
