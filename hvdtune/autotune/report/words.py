"""Tuning's final report for a person: the changes, their cost, how to get them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvdtune.autotune.search.space import Value
from hvdtune.settings.knobs import KNOBS, size_words, to_text


def changes(start: Mapping[str, Value], values: Mapping[str, Value]) -> str:
    """The differences in words: `HOROVOD_CYCLE_TIME 1 ms → 0.31 ms, …`; "" if there are none."""
    return ", ".join(
        f"{KNOBS[key].env} {value_words(key, start[key])} → {value_words(key, value)}"
        for key, value in values.items()
        if start.get(key, value) != value
    )


def value_words(key: str, value: Value) -> str:
    """A setting's value with its unit, for people."""
    knob = KNOBS[key]
    if knob.zero_is_auto and value == 0:
        return "automatic"
    if knob.kind == "bool":
        return "on" if value else "off"
    if knob.kind == "size":
        return size_words(int(value)) if value else "0"
    return f"{value:g}" + (f" {knob.unit}" if knob.unit else "")


def samples(count: int) -> str:
    """`1 sample`, `2 samples`."""
    return f"{count} sample{'' if count == 1 else 's'}"


def as_environment(values: Mapping[str, Value]) -> dict[str, str]:
    """The variables that fix these settings."""
    return {KNOBS[key].env: to_text(KNOBS[key], value) for key, value in values.items()}


def as_flags(values: Mapping[str, Value]) -> list[str]:
    """The flags of `hvdtune run` that fix these settings, as words.

    Settings without a flag are left out: `as_environment` has them all.
    """
    words: list[str] = []
    for key, value in values.items():
        knob = KNOBS[key]
        if knob.kind == "bool":
            words += knob.flags[:1] if value else knob.off_flags[:1]
        elif knob.flags:
            words += [knob.flags[0], _plain(value, knob.flag_multiplier)]
    return words


def as_yaml(values: Mapping[str, Value]) -> str:
    """The same as a file for `--config-file`."""
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        knob = KNOBS[key]
        if knob.yaml is None:
            continue
        section, _, name = knob.yaml.rpartition(".")
        text = str(bool(value)).lower() if knob.kind == "bool" else ""
        line = f"{name}: {text or _plain(value, knob.flag_multiplier)}"
        sections.setdefault(section, []).append(line)
    lines: list[str] = []
    for section, entries in sections.items():
        indent = "  " if section else ""
        lines += [f"{section}:"] if section else []
        lines += [indent + entry for entry in entries]
    return "\n".join(lines)


def without_way(values: Mapping[str, Value], form: str) -> list[str]:
    """Keys of the settings that "flags" or "yaml" cannot express."""
    return [
        key
        for key in values
        if (form == "flags" and not KNOBS[key].flags) or (form == "yaml" and not KNOBS[key].yaml)
    ]


def sentence(
    verdict: str,
    *,
    changed: str = "",
    ended: str = "",
    origin: str | None = None,
    elsewhere: Mapping[str, tuple[Value, Value]] | None = None,
    cost: Sequence[str] = (),
    stored: str | None = None,
    unsure: float | None = None,
    pins: Mapping[str, str] | None = None,
) -> str:
    """One sentence about the whole result.

    `ended`: why tuning did not reach its end, if so. `elsewhere`: settings that `hvdtune tune` has
    found but that a running job cannot change, as (in force, found) by key. `unsure`: the margin,
    as a share, that was too wide to remember the outcome.
    """
    text = verdict
    if origin:
        text += f", with the settings remembered from {origin}"
    if changed:
        text += f": {changed}"
    if elsewhere:
        now = {key: one for key, (one, _) in elsewhere.items()}
        found = {key: one for key, (_, one) in elsewhere.items()}
        words = " ".join(f"{name}={value}" for name, value in as_environment(found).items())
        text += f"; hvdtune tune has found {changes(now, found)}, for which the job must be "
        text += f"started with {words}"
    text += f"; {ended}" if ended else ""
    text += f"; cost: {', '.join(cost)}" if cost else ""
    text += f"; remembered as {stored}" if stored else ""
    if unsure:
        text += f"; not remembered, because its margin is above {100 * unsure:g} %"
    if pins:
        text += f"; to pin it: {' '.join(f'{name}={value}' for name, value in pins.items())}"
    return text


def _plain(value: Value, multiplier: int) -> str:
    """A number for flags and YAML; in bytes if it is not a whole number of the flag's unit."""
    if multiplier == 1:
        return str(value)
    whole, rest = divmod(int(value), multiplier)
    return f"{int(value)}B" if rest else str(whole)
