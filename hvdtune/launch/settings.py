"""Settings from three places: the command line, then the config file, then the environment.

A setting that neither flag nor file gives is left as the user exported it, so that an absent
variable stays absent (and its setting free for the autotuner).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hvdtune.settings import knobs
from hvdtune.settings.knobs import KNOBS, Knob

if TYPE_CHECKING:
    from hvdtune.launch.config_file import ConfigFile


class Choice:
    """The values in force: `values` by key, `sources` in words, `notices` to print.

    `starts` are the sources of settings that only begin with their value (`--autotune-start`).
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.sources: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        self.notices: list[str] = []

    def variables(self) -> dict[str, str]:
        """The environment variables for values from flags and file; the rest is set already."""
        return {
            KNOBS[key].env: knobs.to_text(KNOBS[key], self.values[key])
            for key, source in self.sources.items()
            if not _from_environment(source)
        }


def choose(
    flags: Mapping[str, tuple[str, Any]],
    config: ConfigFile | None,
    environ: Mapping[str, str],
    *,
    one_host: bool = False,
) -> Choice:
    """Settle every setting, for a job that is known to be on `one_host` or may be on several.

    `flags` holds (flag as typed, value) by key. The result's sources are "--flag", "FILE: key",
    or "environment: NAME"; settings at their default have none. Raises `KnobError` for a variable
    that is malformed, unless a flag or the file overrides it.
    """
    overridden = {KNOBS[key].env for key in (*flags, *(config.values if config else ()))}
    given = knobs.from_environ({k: v for k, v in environ.items() if k not in overridden})
    choice = Choice(values=given.as_dict())
    for key, knob in KNOBS.items():
        if key in flags:
            choice.sources[key], choice.values[key] = flags[key]
        elif config is not None and key in config.values:
            choice.sources[key] = f"{config.path}: {knob.yaml}"
            choice.values[key] = config.values[key]
        elif given.is_fixed(key):
            choice.sources[key] = f"environment: {knob.env}"
    _drop_dependents(choice)
    _add_starts(choice)
    _add_notices(choice, config, one_host)
    knobs.check_together(choice.values)
    return choice


def _drop_dependents(choice: Choice) -> None:
    """Drop flags whose main flag is missing (Horovod does not export them either)."""
    for key, source in list(choice.sources.items()):
        knob = KNOBS[key]
        if not knob.requires or choice.values[knob.requires] or _from_environment(source):
            continue
        if choice.values[key]:
            main = KNOBS[knob.requires]
            choice.notices.append(f"{source} has no effect without {main.flags[0]}.")
        choice.values[key] = knob.default
        del choice.sources[key]


def _add_starts(choice: Choice) -> None:
    starting_point = knobs.starting_point(choice.values, choice.sources)
    source = choice.sources.get("autotune_start", "")
    choice.values.update(starting_point)
    choice.starts = dict.fromkeys(starting_point, source)
    if choice.values["autotune"]:
        choice.notices += [
            f"{source} says nothing for {key}: {choice.sources[key]} fixes it."
            for key, _ in choice.values["autotune_start"]
            if key not in starting_point
        ]


def _add_notices(choice: Choice, config: ConfigFile | None, one_host: bool) -> None:
    for key, source in choice.sources.items():
        knob: Knob = KNOBS[key]
        if choice.values[key] == knob.default or _from_environment(source):
            continue
        if knob.inert:
            choice.notices.append(f"{source} has no effect: {knob.inert}.")
        elif knob.between_hosts and one_host:
            choice.notices.append(f"{source} has no effect: all ranks are on one host.")
    if config is not None:
        choice.notices += [f"{config.path}: {words}" for words in config.notices()]


def _from_environment(source: str) -> bool:
    return source.startswith("environment: ")
