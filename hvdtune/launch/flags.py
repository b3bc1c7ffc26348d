"""The command-line flags of the settings, made from the table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hvdtune.settings.knobs import KNOBS, Knob, KnobError, parse, size_words

_TITLES = {
    "params": "settings of the engine",
    "autotune": "autotune",
    "timeline": "timeline",
    "stall_check": "stall check",
    "metrics": "metrics",
    "library_options": "libraries and threads",
    "logging": "logging",
    "": "other settings",
}
_METAVARS = {
    **{"int": "N", "float": "X", "size": "SIZE", "int_list": "N,N,…"},
    "steps_or_share": "N or P%",
    "count_or_auto": "N or auto",
    "assignments": "NAME=X,…",
    "step_range": "FIRST:END",
}


def add_knob_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every setting, grouped by topic.

    The values given are in the namespace's `knobs`: {key: (flag as typed, value)}. A value that is
    not accepted ends in `parser.error`.
    """
    parser.set_defaults(knobs={})
    for section, title in _TITLES.items():
        add_section(parser.add_argument_group(title), section)


def add_section(group: argparse._ArgumentGroup, section: str) -> None:
    """Add the flags of one topic."""
    for knob in KNOBS.values():
        if knob.flags and knob.section == section:
            _add(group, knob)


def _add(group: argparse._ArgumentGroup, knob: Knob) -> None:
    if knob.kind != "bool":
        group.add_argument(
            *knob.flags, action=_KnobAction, knob=knob, metavar=_metavar(knob), help=_help(knob)
        )
        return
    pair = group.add_mutually_exclusive_group()
    pair.add_argument(
        *knob.flags, action=_KnobAction, knob=knob, nargs=0, const=True, help=_help(knob)
    )
    if knob.off_flags:
        pair.add_argument(
            *knob.off_flags, action=_KnobAction, knob=knob, nargs=0, const=False,
            help=f"turn {knob.flags[0]} off" + _effect(knob),
        )  # fmt: skip


def _metavar(knob: Knob) -> str:
    if knob.kind == "choice":
        return "{" + ",".join(knob.choices) + "}"
    return "FILE" if knob.unit == "path" else _METAVARS.get(knob.kind, "TEXT")


def _help(knob: Knob) -> str:
    words = knob.help.rstrip(".")
    if words[1:2].islower() or words[1:2] == " ":  # not "CSV" or "CPU"
        words = words[0].lower() + words[1:]
    if knob.kind != "bool" and knob.default not in (None, "", ()):
        default = size_words(knob.default) if knob.kind == "size" else f"{knob.default}"
        words += f" (default: {default}{_unit(knob)})"
    return (words + _effect(knob)).replace("%", "%%")


def _effect(knob: Knob) -> str:
    return " (no effect in this version)" if knob.inert else ""


def _unit(knob: Knob) -> str:
    return f" {knob.unit}" if knob.unit in ("ms", "s", "us") else ""


class _KnobAction(argparse.Action):
    """Parses a flag's value as the table says and notes it with the flag as it was typed."""

    def __init__(self, option_strings: Sequence[str], dest: str, knob: Knob, **kwargs: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, **kwargs)
        self.knob = knob

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        knob, flag = self.knob, option_string or self.option_strings[0]
        try:
            value = self.const if self.nargs == 0 else _parse(knob, values, flag)
        except KnobError as error:
            parser.error(str(error))
        namespace.knobs = {**namespace.knobs, knob.key: (flag, value)}


def _parse(knob: Knob, text: str, flag: str) -> Any:
    return parse(knob, text, flag, knob.flag_multiplier)
