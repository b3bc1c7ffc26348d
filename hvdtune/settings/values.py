"""One setting, and how its text becomes a value.

`knobs` holds the table; this module knows the kinds of values the table uses. Text comes from
environment variables, command-line flags and YAML files; all three go through `parse`, so a setting
accepts the same spellings everywhere and every error has the same form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hvdtune.settings.spelling import hint

INT_LIMIT = 2**31 - 1
SIZE_LIMIT = 2**63 - 1

_SIZE = r"([+-]?\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?"
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class KnobError(ValueError):
    """A value is not accepted; the text names the setting, the value and the accepted values."""


class Knob(NamedTuple):
    """One setting.

    `flags` set the value (a boolean's flags set it to true), `off_flags` set a boolean to false.
    A plain number given to a flag or in YAML is multiplied by `flag_multiplier`; environment
    variables are always in `unit`. `yaml_inverted` marks booleans whose YAML key means the
    opposite. `requires` is the key of the setting without which this one does nothing. `inert`
    says why a setting that exists for compatibility has no effect; it is empty for the others.
    `between_hosts` marks settings that do nothing in a job on one host, `on_gpus` those that do
    nothing without tensors on GPUs. `at_most` is the key of the setting that this one's value must
    not exceed, unless either is 0.
    `empty_counts` marks settings for which an empty variable has a meaning ("none").
    Only tunable settings have `tune_range` and `scale`, which are for the autotuner; the first
    value it tries is `tune_first`, the best or nearly so on several response surfaces of
    benchmarks/autotune. `acts_on` says on which batches a number of bytes acts: "longer" or
    "shorter" ones. `restart` marks settings that change only if the job is restarted; `offline`
    marks those that a running job could change, but should not try by itself. Only `hvdtune tune`
    moves either kind.
    """

    key: str
    env: str
    kind: str
    default: Any
    help: str
    flags: tuple[str, ...] = ()
    off_flags: tuple[str, ...] = ()
    yaml: str | None = None
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    flag_multiplier: int = 1
    yaml_inverted: bool = False
    zero_is_auto: bool = False
    requires: str | None = None
    at_most: str | None = None
    inert: str = ""
    between_hosts: bool = False
    on_gpus: bool = False
    empty_counts: bool = False
    internal: bool = False
    tunable: bool = False
    restart: bool = False
    offline: bool = False
    scale: str | None = None
    tune_range: tuple[float, float] | None = None
    tune_first: float | None = None
    acts_on: str = ""
    since: str = "0.1"

    @property
    def tuned_offline(self) -> bool:
        """Whether only `hvdtune tune` moves it."""
        return self.tunable and (self.restart or self.offline)

    @property
    def section(self) -> str:
        """The YAML section this setting belongs to; "" for those without a YAML key."""
        return self.yaml.split(".")[0] if self.yaml and "." in self.yaml else ""


def parse(knob: Knob, value: Any, setting: str, multiplier: int = 1) -> Any:
    """Turn text (or a YAML scalar) into the setting's value.

    `setting` is the name the user knows it by ("HOROVOD_CYCLE_TIME", "--cycle-time-ms"); it opens
    the message of the `KnobError` that anything unacceptable raises. `multiplier` applies to
    numbers written without a unit.
    """
    text = _as_text(value)
    try:
        parsed = PARSERS[knob.kind](knob, text, multiplier)
    except KnobError as error:
        raise KnobError(f"{setting}: {error}") from None
    except ValueError:
        raise KnobError(
            f"{setting} is {value!r}, which is not accepted: give {accepted(knob, multiplier)}"
            f"{hint(text, _WORDS if knob.kind == 'bool' else knob.choices)}"
        ) from None
    return parsed


def to_text(knob: Knob, value: Any) -> str:
    """Write a value the way `knob.env` carries it to the workers."""
    if value is None:
        return ""
    if knob.kind == "bool":
        return "1" if value else "0"
    if knob.kind == "int_list":
        return ",".join(str(item) for item in value)
    if knob.kind == "step_range":
        return ":".join(str(step) if step else "" for step in value)
    if knob.kind == "assignments":
        return ",".join(f"{key}={item}" for key, item in value)
    return str(value)


def accepted(knob: Knob, multiplier: int = 1) -> str:
    """Describe in words what `parse` accepts for this setting."""
    if knob.kind == "bool":
        return "1 or 0 (true/false, yes/no, on/off are understood too)"
    if knob.kind == "choice":
        return "one of " + ", ".join(knob.choices)
    if knob.kind == "int_list":
        return "whole numbers, 0 or more, separated by commas, such as 0,2,4"
    if knob.kind == "assignments":
        return "tunable settings and values, such as cycle_time_ms=100,fusion_threshold_mb=0"
    if knob.kind == "step_range":
        return (
            "the first step and the one after the last, counted from 1, such as 100:120 (in "
            'YAML as "100:120"), or 100: for all steps from there on'
        )
    if knob.kind == "str":
        return "some text"
    if knob.kind == "count_or_auto":
        return f"auto, or a whole number{_range_words(knob)}"
    if knob.kind == "steps_or_share":
        return f"a whole number of steps{_range_words(knob)}, or a share of the run such as 1%"
    noun = {"int": "a whole number", "float": "a number", "size": "a size"}[knob.kind]
    if knob.kind == "size":
        plain = "MiB" if multiplier == 2**20 else "bytes"
        noun += f" such as 64MB, 1GiB or a plain number of {plain}"
    elif knob.unit:
        noun += f" of {knob.unit}"
    return noun + _range_words(knob)


def _range_words(knob: Knob) -> str:
    low, high = (_bound_words(knob, bound) for bound in (knob.minimum, knob.maximum))
    if low and high:
        words = f", from {low} to {high}"
    elif low:
        words = f", {low} or more"
    elif high:
        words = f", at most {high}"
    else:
        words = ""
    return words + (", or 0 to leave the choice to hvdtune" if knob.zero_is_auto else "")


def _bound_words(knob: Knob, bound: float | None) -> str:
    if bound is None:
        return ""
    return size_words(int(bound)) if knob.kind == "size" else f"{bound:g}"


def size_words(count: int) -> str:
    """Write a number of bytes with the largest unit that divides it: 134217728 -> "128 MiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B" if count else "0"


def parse_size(text: str, multiplier: int = 1) -> int:
    """Read a number of bytes: "64MB", "1GiB", "65536"; KB, MB and GB are powers of 1024.

    (As in Horovod's `--fusion-threshold-mb` and nccl-tests' `-b 8M`.) Raises ValueError.
    """
    match = re.fullmatch(_SIZE, text, re.IGNORECASE)
    if not match:
        raise ValueError(text)
    number, prefix, binary = match.groups()
    if binary and not prefix:
        raise ValueError(text)
    has_unit = text[-1].isalpha()
    factor = _SIZE_UNITS[prefix.lower()] if has_unit else multiplier
    whole = int(number) if "." not in number else float(number)
    return int(whole * factor)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value).strip()


def _parse_steps_or_share(knob: Knob, text: str, multiplier: int) -> int | str:
    """A number of steps, or a share of the run in per cent, which stays text: "1%"."""
    if not text.endswith("%"):
        return _parse_int(knob, text, multiplier)
    share = float(text[:-1]) if "_" not in text else math.nan
    if not 0 < share <= 100:
        raise ValueError(text)
    return f"{share:g}%"


def _parse_count_or_auto(knob: Knob, text: str, multiplier: int) -> int | str:
    return "auto" if text.lower() == "auto" else _parse_int(knob, text, multiplier)


def _parse_bool(_knob: Knob, text: str, _multiplier: int) -> bool:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return _plain_int(text) > 0


def _parse_int(knob: Knob, text: str, multiplier: int) -> int:
    return int(_checked(knob, _plain_int(text) * multiplier, INT_LIMIT))


def _parse_size(knob: Knob, text: str, multiplier: int) -> int:
    return int(_checked(knob, parse_size(text, multiplier), SIZE_LIMIT))


def _parse_float(knob: Knob, text: str, multiplier: int) -> float:
    number = float(text) * multiplier
    if not math.isfinite(number) or "_" in text:
        raise ValueError(text)
    return float(_checked(knob, number, math.inf))


def _parse_choice(knob: Knob, text: str, _multiplier: int) -> str:
    for choice in knob.choices:
        if choice.lower() == text.lower():
            return choice
    raise ValueError(text)


def _parse_int_list(_knob: Knob, text: str, _multiplier: int) -> tuple[int, ...]:
    numbers = tuple(_plain_int(part.strip()) for part in text.split(",")) if text else ()
    if any(number < 0 or number > INT_LIMIT for number in numbers):
        raise ValueError(text)
    return numbers


def _parse_step_range(_knob: Knob, text: str, _multiplier: int) -> tuple[int, int]:
    """Read "100:120" as (100, 120), and "100:" as (100, 0)."""
    first, colon, end = text.partition(":")
    steps = _plain_int(first), _plain_int(end) if end else 0
    if not colon or steps[0] < 1 or (end and not steps[0] < steps[1] <= INT_LIMIT):
        raise ValueError(text)
    return steps


def _parse_str(_knob: Knob, text: str, _multiplier: int) -> str:
    return text


def _plain_int(text: str) -> int:
    # int() alone would take "1_000" and digits of other scripts.
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def _checked(knob: Knob, number: float, limit: float) -> float:
    if knob.zero_is_auto and number == 0:
        return number
    below = knob.minimum is not None and number < knob.minimum
    above = number > (limit if knob.maximum is None else knob.maximum)
    if below or above or number < -limit:
        raise ValueError(number)
    return number


#: By kind. `knobs` adds the parser that needs the whole table.
PARSERS: dict[str, Callable[[Knob, str, int], Any]] = {
    "bool": _parse_bool,
    "int": _parse_int,
    "size": _parse_size,
    "float": _parse_float,
    "choice": _parse_choice,
    "int_list": _parse_int_list,
    "step_range": _parse_step_range,
    "count_or_auto": _parse_count_or_auto,
    "steps_or_share": _parse_steps_or_share,
    "str": _parse_str,
}
