"""The `hvdtune` command. Each verb is a file in this folder, which defines:

    HELP: str                        one line for `hvdtune --help`
    add_arguments(parser) -> None    declares the verb's flags
    run(args) -> int                 does it; the exit status
    ABBREVIATIONS = True             if its flags may be cut short (optional)

This file and files whose names begin with "_" are not verbs. A verb's module is imported when the
verb is called, so it must not import anything slow at its top.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from hvdtune.cli._abbreviations import completed
from hvdtune.settings.spelling import hint, nearest
from hvdtune.version import __version__

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence instead of the list of all flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # argparse would find the terminal's width again for every flag, with slow imports.
        kwargs.setdefault("formatter_class", partial(argparse.HelpFormatter, width=_width()))
        super().__init__(*args, **kwargs)
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and keep the words for the sentence about a mistake."""
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with 2."""
        _, unrecognized, words = message.partition("unrecognized arguments: ")
        if unrecognized or "arguments are required" in message:
            flags = [word for word in words.split() if word.startswith("-")]
            flags = flags or self._first_unknown_flag()
            near = [one for one in (nearest(flag, self._flags()) for flag in flags) if one]
            if near:
                unknown = "" if unrecognized else f", and there is no {', '.join(flags)}"
                message += f"{unknown}; did you mean {', '.join(near)}?"
        stop = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message.rstrip('.')}{stop} See: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            accepted = f"give one of {', '.join(names)}{hint(str(value), names)}"
            raise argparse.ArgumentError(action, f"{value!r} is not accepted: {accepted}")

    def _flags(self) -> list[str]:
        """The flags in the help, including those of sub-commands."""
        found: list[str] = []
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [flag for parser in action.choices.values() for flag in parser._flags()]
            elif action.help != argparse.SUPPRESS:
                found += action.option_strings
        return found

    def _first_unknown_flag(self) -> list[str]:
        """The first undeclared flag before the program's name; words after it are the program's."""
        known = {flag: action for action in self._actions for flag in action.option_strings}
        has_program = any(action.nargs == argparse.REMAINDER for action in self._actions)
        words = iter(self._words)
        for word in words:
            flag, equals, _ = word.partition("=")
            if word == "--" or (has_program and not word.startswith("-")):
                break
            if flag in known and not equals and known[flag].nargs is None:
                next(words, None)
            elif word.startswith("--") and flag not in known:
                return [flag]
        return []


def _width() -> int:
    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        columns = 100
    return max(40, min(columns, 100) - 2)


def verbs() -> list[str]:
    """The names of all verbs."""
    names = (name.removesuffix(".py") for name in os.listdir(_FOLDER) if name.endswith(".py"))
    return sorted(name for name in names if name != "main" and not name.startswith("_"))


def version() -> str:
    """The version of this very package, installed or not."""
    return __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `hvdtune VERB …`; return the exit status.

    0 is success, 2 a mistake on the command line or in a setting, 1 any other failure that has an
    explanation; `hvdtune run` returns its job's status.
    """
    if arguments is None:
        try:
            return _run(sys.argv[1:])
        finally:
            # Only Python's own exit is left: Ctrl-C during it is not an error to report.
            from hvdtune.launch import interruption

            interruption.by_default()
    return _run(list(arguments))


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] in ("-v", "--version"):
        print(f"hvdtune {version()}")
        return 0
    verb = words[0]
    if verb not in verbs():
        kind = "flag" if verb.startswith("-") else "command"
        flag = verb.partition("=")[0]
        end = hint(verb, verbs())
        if kind == "flag" and flag in _parser("run")._flags():
            end = f"; did you mean hvdtune run {flag}?"
        print(
            f"hvdtune: there is no {kind} {verb!r}. Commands: {', '.join(verbs())}{end}",
            file=sys.stderr,
        )
        return 2
    return _run_verb(verb, words[1:])


def _overview() -> str:
    names = verbs()
    width = max(map(len, names))
    lines = [f"  {name:<{width}}  {_module(name).HELP}" for name in names]
    return "\n".join(
        [
            "usage: hvdtune COMMAND …",
            "",
            "Runs Horovod training scripts on its own allreduce engine; tunes and profiles them.",
            "",
            *lines,
            "",
            "Each command explains itself: hvdtune COMMAND --help",
        ]
    )


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"hvdtune.cli.{verb}")


def _parser(verb: str) -> Parser:
    module = _module(verb)
    parser = Parser(prog=f"hvdtune {verb}", description=module.HELP, allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def _run_verb(verb: str, words: Sequence[str]) -> int:
    from hvdtune.launch import interruption

    program = f"hvdtune {verb}"
    try:
        with interruption.heard():
            module, parser = _module(verb), _parser(verb)
            if getattr(module, "ABBREVIATIONS", False):
                words = completed(parser, words)
            return int(module.run(parser.parse_args(words)))
    except KeyboardInterrupt:
        return _complain(program, "interrupted.", 130)
    except interruption.Ended as ended:
        return _complain(program, "ended by SIGTERM.", int(ended.code or 0))
    except BrokenPipeError:
        # `| head` expects silence. The interpreter must not try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except ModuleNotFoundError as error:
        if (error.name or "hvdtune").partition(".")[0] == "hvdtune":
            raise
        return _complain(program, f"this needs the package {error.name}, which is missing.", 1)
    except ValueError as error:
        return _complain(program, str(error), 2, error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(program, f"{where}{error.strerror or error}.", 1, error)


def _complain(program: str, sentence: str, status: int, error: Exception | None = None) -> int:
    """Print a sentence that helps the user; with HVDTUNE_TRACEBACK=1 also the traceback."""
    if error is not None and os.environ.get("HVDTUNE_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    print(f"{program}: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
