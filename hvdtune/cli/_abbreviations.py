"""Abbreviated flags, as in horovodrun: `--fusion-threshold 32` for `--fusion-threshold-mb`.

argparse could do it, but would also look for abbreviations among the arguments of the user's
command, and refuse those that fit two flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence


def completed(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words with every abbreviated flag before the command written out.

    An abbreviation that fits two flags ends in `parser.error`; one that fits none stays.
    """
    actions = {name: action for action in parser._actions for name in action.option_strings}
    result: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in actions and name.startswith("--"):
            name = _whole(parser, name, actions)
        result.append(name + equals + value)
        if name == "-n":  # argparse's own abbreviation of -np
            name = "-np"
        if name in actions and not equals:
            taken = _words_of(actions[name])
            result += rest[:taken]
            rest = rest[taken:]
    return result + rest


def _whole(parser: argparse.ArgumentParser, name: str, actions: dict[str, argparse.Action]) -> str:
    found = [flag for flag in actions if flag.startswith(name)]
    # An abbreviation that horovodrun accepts must be accepted here as well.
    found = [flag for flag in found if not _is_hvdtunes(actions[flag])] or found
    if len({id(actions[flag]) for flag in found}) > 1:
        parser.error(f"{name} could be {_listed(found)}: write it out")
    return found[0] if found else name


def _is_hvdtunes(action: argparse.Action) -> bool:
    """Whether a flag sets something that only hvdtune has."""
    knob = getattr(action, "knob", None)
    return knob is not None and knob.env.startswith("HVDTUNE_")


def _listed(names: Iterable[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} or {last}"


def _words_of(action: argparse.Action) -> int:
    if action.nargs is None:
        return 1
    return action.nargs if isinstance(action.nargs, int) else 0
