"""The `--config-file`: Horovod's YAML, a section per topic, with the keys of the settings' table.

A section that is present decides its topic: `autotune:` without `enabled` means off,
`stall_check:` without `enabled` means on, as in Horovod. Empty sections have no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hvdtune.launch.errors import LaunchError
from hvdtune.settings.knobs import KNOBS, Knob, KnobError, parse
from hvdtune.settings.spelling import nearest

_SECTIONS = {knob.section for knob in KNOBS.values() if knob.section}
# In an unknown key that seems to mean the opposite of a known one.
_NEGATION = re.compile(r"(?<![a-z])(?:disable|hide|no(?![a-z]))", re.IGNORECASE)


@dataclass
class ConfigFile:
    """The content of a file: settings by key, and entries that are not settings ("params.colour").

    Code that takes entries out of `others` adds their names to `known`, so that misspelt ones are
    recognised.
    """

    path: str
    values: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    known: set[str] = field(default_factory=lambda: {k.yaml for k in KNOBS.values() if k.yaml})

    def notices(self) -> list[str]:
        """A sentence about each unknown key."""
        sentences = []
        for key in self.others:
            near = _nearest(key, self.known)
            end = f"; did you mean {near}{_opposite(key, near)}?" if near else "."
            sentences.append(f"{key} is no known setting{end}")
        return sentences


def read_config_file(path: str) -> ConfigFile:
    """Read a YAML file of settings.

    Raises `LaunchError` if it cannot be read or is not a YAML mapping, `KnobError` naming file, key
    and value if a value is not accepted.
    """
    config = ConfigFile(path)
    entries = config.others = _entries(_load(path), config)
    for knob in KNOBS.values():
        if knob.yaml in entries:
            value = _value(knob, entries.pop(knob.yaml), path)
            if value is not None:
                config.values[knob.key] = value
    return config


def _load(path: str) -> dict[str, Any]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise LaunchError(f"--config-file {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise LaunchError(f"--config-file {path} is not YAML: {reason}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise LaunchError(f"--config-file {path} must hold sections such as 'params:'.")
    return {str(key): value for key, value in content.items()}


def _entries(content: dict[str, Any], config: ConfigFile) -> dict[str, Any]:
    """Flatten sections to {"params.cycle_time_ms": 5}."""
    entries: dict[str, Any] = {}
    for name, body in content.items():
        if name not in _SECTIONS:
            entries[name] = body
        elif body is None or body == {}:
            continue
        elif not isinstance(body, dict):
            raise LaunchError(
                f"{name} in {config.path} is {body!r}, which is not accepted: "
                "give a section of 'key: value' lines."
            )
        else:
            enabled = {"autotune": False, "stall_check": True}
            if name in enabled:
                entries[f"{name}.enabled"] = enabled[name]
            for key, value in body.items():
                # Besides Horovod's own keys there are those of elastic jobs, named like flags.
                key = f"{key}".replace("-", "_") if name == "elastic" else key
                entries[f"{name}.{key}"] = value
    return entries


def _value(knob: Knob, value: Any, path: str) -> Any:
    """Parse one entry; None for a key without a value, which has no effect."""
    if value is None:
        return None
    setting = f"{knob.yaml} in {path}"
    if isinstance(value, dict) and knob.kind != "assignments":
        raise KnobError(f"{setting} is a section, which is not accepted: give one value.")
    parsed = parse(knob, value, setting, knob.flag_multiplier)
    return not parsed if knob.yaml_inverted else parsed


def _opposite(unknown: str, near: str) -> str:
    """Words about a near key that turns off what the unknown one seems to turn on; otherwise ""."""
    variables = {knob.yaml: knob.env for knob in KNOBS.values() if knob.yaml_inverted}
    is_opposite = near in variables and _NEGATION.search(unknown)
    return f", which turns {variables[near]} off" if is_opposite else ""


def _nearest(key: str, known: set[str]) -> str | None:
    """The known key most like an unknown one: of its own section, otherwise of the whole file."""
    section, dot, name = key.rpartition(".")
    if not dot and (near := nearest(name, {*_SECTIONS, *(one for one in known if "." not in one)})):
        return near
    for keys in ([one for one in known if one.startswith(f"{section}.")], sorted(known)):
        names = {one.rpartition(".")[2]: one for one in keys}
        if near := nearest(name, names):
            return names[near]
    return None
