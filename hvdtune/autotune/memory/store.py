"""What tuning found, remembered from run to run: one JSON file of profiles.

    {"format": "hvdtune autotune store", "version": 1, "profiles": {KEY: {...}, ...}}

A profile says which settings were best for one kind of job; its key is made from everything that
decides that (`identity`). Several jobs may use one file at once: a change is read, made and written
under a lock on FILE.lock, and the new file replaces the old one in one step, so a reader never sees
half of it. When the next profile is written, a store that cannot be understood is kept as
FILE.corrupt. A file that does not look like a store at all, or is not a regular file, is left
alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdtune.autotune.search.space import Value
from hvdtune.settings.knobs import KNOBS, KnobError, parse

FORMAT = "hvdtune autotune store"
VERSION = 1
MOST_PROFILES = 500  # the oldest are dropped first
LOCK_PATIENCE_S = 1.5  # others hold the lock for milliseconds
LOCK_POLL_S = 0.01
_HEAD = f'{{"format":"{FORMAT}"'  # the beginning of a store, without white space


class StoreError(RuntimeError):
    """The store cannot be used; the text names the file and says why."""


class CorruptStoreError(StoreError):
    """The file was a store, but is not a valid one of this or an older version."""


@dataclass(frozen=True)
class Profile:
    """The outcome of tuning one kind of job.

    `values` are the settings that were best (by key, in the knobs' units). `start` are those that
    the run began with, equal to `values` if nothing faster was found. `gain` and `margin` are
    shares of the step time; `steps` and `seconds` are the cost of tuning. `when` is UTC (ISO 8601).
    """

    identity: dict[str, Any]
    values: dict[str, Value]
    start: dict[str, Value]
    verdict: str
    when: str
    program: str = ""
    gain: float | None = None
    margin: float | None = None
    step_time_ms: float | None = None
    steps: int = 0
    seconds: float = 0.0

    @property
    def is_change(self) -> bool:
        """Whether something faster than the start was found."""
        return self.values != self.start


def key_of(identity: Mapping[str, Any]) -> str:
    """The key of an identity: twelve hexadecimal digits, the same in every run."""
    import hashlib  # loads OpenSSL, which not every importer of this module needs

    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """`hvdtune/autotune.json` in the user's cache folder. Raises StoreError without a home."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return Path(cache, "hvdtune", "autotune.json")
    try:
        if environ.get("HOME") == "":  # would be the root folder
            raise RuntimeError
        return Path("~/.cache/hvdtune/autotune.json").expanduser()
    except RuntimeError:
        raise StoreError(
            "there is no home folder to remember settings in; set HVDTUNE_AUTOTUNE_STORE to a file"
        ) from None


def open_store(setting: str | None) -> Store | None:
    """The store that the setting `autotune_store` names; None if it is empty.

    Raises StoreError if there is no folder for it.
    """
    if setting is None:
        return Store(default_path())
    if not setting:
        return None
    try:
        return Store(Path(setting).expanduser())
    except RuntimeError:
        raise StoreError(
            f"the autotune store {setting!r} cannot be found: {setting.partition('/')[0]} is "
            "nobody's home folder"
        ) from None


class Store:
    """One file of profiles. It is opened or created only when needed."""

    def __init__(self, path: Path, patience_s: float = LOCK_PATIENCE_S) -> None:
        self.path = path
        self._patience_s = patience_s

    def read(self) -> dict[str, Profile]:
        """All profiles by key, in the order they were stored; none if there is no file.

        Raises StoreError if the file cannot be read or never was a store, CorruptStoreError if it
        was one.
        """
        try:
            data = self._content()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read ({error.strerror or error})") from None
        try:
            return _profiles(self.path, data)
        except _NotUnderstood as error:
            if _looks_like_store(data):
                raise CorruptStoreError(f"{self.path} is not an autotune store: {error}") from None
            raise StoreError(
                f"{self.path} is not an autotune store, left as it is ({error})"
            ) from None

    def _content(self) -> bytes:
        # Open it without blocking: opening a pipe would wait for its writer.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISREG(mode):
                with open(descriptor, "rb", closefd=False) as file:
                    return file.read()
        finally:
            os.close(descriptor)
        raise OSError("Is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")

    def put(self, profile: Profile) -> Path | None:
        """Remember a profile; it replaces any with the same identity.

        Returns the new path of a corrupt store that was there. Raises StoreError, also for a store
        of a newer version and for a file that is not a store; those are left alone.
        """
        moved = None
        with contextlib.suppress(CorruptStoreError):
            self.read()  # before a lock appears next to somebody else's file
        with self._locked():
            try:
                profiles = self.read()
            except CorruptStoreError:
                moved, profiles = self._move_aside(), {}
            key = key_of(profile.identity)
            profiles.pop(key, None)
            profiles[key] = profile
            self._write(dict(list(profiles.items())[-MOST_PROFILES:]))
        return moved

    def forget(self, chosen: Callable[[str], bool]) -> list[str]:
        """Drop the profiles whose key is `chosen`; returns the keys. Raises StoreError."""
        if not self.read():
            return []
        with self._locked():
            profiles = self.read()
            gone = [key for key in profiles if chosen(key)]
            if gone:
                self._write({key: one for key, one in profiles.items() if key not in gone})
        return gone

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            target = self._target()
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{target}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written ({error.strerror or error})") from None
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self.path} is locked by another process for more than "
                        f"{self._patience_s:g} s ({self._target()}.lock)"
                    ) from None
                time.sleep(LOCK_POLL_S)
            except OSError as error:
                raise StoreError(
                    f"{self.path} cannot be locked ({error.strerror or error})"
                ) from None

    def _target(self) -> Path:
        """The file itself, so that a symbolic link to it stays one."""
        return Path(os.path.realpath(self.path))

    def _write(self, profiles: Mapping[str, Profile]) -> None:
        data = {
            "format": FORMAT,
            "version": VERSION,
            "profiles": {key: asdict(profile) for key, profile in profiles.items()},
        }
        target = self._target()
        temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
        try:
            # Created by hand for its mode: that of the file it replaces, or else the umask's.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o666), "w", encoding="utf-8") as file:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
                json.dump(data, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise StoreError(f"{self.path} cannot be written ({error.strerror or error})") from None

    def _move_aside(self) -> Path:
        target = self._target()
        for number in range(1, 100):
            aside = Path(f"{target}.corrupt" + (f"-{number}" if number > 1 else ""))
            if not aside.exists():
                break
        try:
            os.replace(target, aside)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be moved to {aside} ({error.strerror or error})"
            ) from None
        return aside


class _NotUnderstood(Exception):
    """The content is not a store; the text says why."""


def _looks_like_store(content: bytes) -> bool:
    """Whether the content may be a damaged store: it has the mark, or was cut off early."""
    text = content.decode(errors="replace").strip()
    if text.startswith("{") and FORMAT in text:
        return True
    return "".join(_HEAD.split()).startswith("".join(text.split()))


def _profiles(path: Path, content: bytes) -> dict[str, Profile]:
    try:
        data = json.loads(content.decode())
    except UnicodeDecodeError:
        raise _NotUnderstood("it is not text") from None
    except ValueError as error:
        raise _NotUnderstood(str(error)) from None
    except RecursionError:
        raise _NotUnderstood("it is nested too deeply") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _NotUnderstood(f'it has no "format": "{FORMAT}"')
    version = data.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StoreError(
            f"{path} was written by a newer hvdtune (version {version} of its format, this one "
            f"knows {VERSION}); it is left as it is"
        )
    profiles: dict[str, Profile] = {}
    try:
        for key, fields in data["profiles"].items():
            profiles[key] = _profile(fields)
            if key != key_of(profiles[key].identity):
                raise ValueError(f"profile {key} has another profile's identity")
    except RecursionError:
        raise _NotUnderstood("it is nested too deeply") from None
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        # Tell users who edit the file what is wrong with it.
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise _NotUnderstood(what) from None
    return profiles


def _profile(fields: Mapping[str, Any]) -> Profile:
    profile = Profile(**fields)
    for values in (profile.values, profile.start):
        for key, value in values.items():
            _check(key, value)
    if not isinstance(profile.identity, dict) or not profile.values:
        raise ValueError("a profile without an identity or without settings")
    for name in ("when", "program", "verdict"):
        if not isinstance(getattr(profile, name), str):
            raise ValueError(f"a profile's {name!r} is not text")
    for number in (profile.gain, profile.margin, profile.step_time_ms):
        if number is not None:
            _check_number(number)
    _check_number(profile.seconds)
    _check_number(profile.steps)
    if not isinstance(profile.steps, int):
        raise ValueError("a profile's 'steps' is not a whole number")
    return profile


def _check_number(number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"a profile holds {number!r}, which is not a number")
    if not math.isfinite(number):  # raises OverflowError for an integer beyond all floats
        raise ValueError(f"a profile holds the number {number}")


def _check(key: str, value: object) -> None:
    knob = KNOBS.get(key)
    if knob is None or not knob.tunable:
        raise ValueError(f"{key!r} is not a setting that may be tuned")
    if not isinstance(value, bool | int | float):
        raise ValueError(f"{key} is {value!r}, which is not a number")
    try:
        parse(knob, int(value) if knob.kind in ("size", "int") else value, key)
    except (KnobError, OverflowError) as error:
        raise ValueError(str(error)) from None
