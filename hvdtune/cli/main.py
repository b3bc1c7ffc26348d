"""The `hvdtune` command. Each verb is a file of this folder with these things in it:

    HELP: str                        one line for `hvdtune --help`
    add_arguments(parser) -> None    declares the verb's flags
    run(args) -> int                 does it; the exit status
    ABBREVIATIONS = True             if its flags may be cut short (optional)

Files whose name begins with "_", and this one, are no verbs. A verb's module is imported when it
is asked for, so it must not import anything heavy itself.
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

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence instead of the list of all flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # argparse finds the terminal's width for every flag anew, by way of slow imports.
        kwargs.setdefault("formatter_class", partial(argparse.HelpFormatter, width=_width()))
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with 2."""
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. See: {self.prog} --help\n")


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
    from hvdtune import __version__

    return __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `hvdtune VERB …`; return the exit status.

    0 is success, 2 a mistake on the command line or in a setting, 1 any other failure that has an
    explanation; `hvdtune run` returns what its job returned.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] in ("-v", "--version"):
        print(f"hvdtune {version()}")
        return 0
    verb = words[0]
    if verb not in verbs():
        kind = "flag" if verb.startswith("-") else "command"
        print(
            f"hvdtune: there is no {kind} {verb!r}. Commands: {', '.join(verbs())}.",
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


def _run_verb(verb: str, words: Sequence[str]) -> int:
    program = f"hvdtune {verb}"
    try:
        module = _module(verb)
        parser = Parser(prog=program, description=module.HELP, allow_abbrev=False)
        module.add_arguments(parser)
        if getattr(module, "ABBREVIATIONS", False):
            words = completed(parser, words)
        return int(module.run(parser.parse_args(words)))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # As `| head` wants it: quiet. The interpreter must not try to flush once more.
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
    """Say what a user can do something about; with HVDTUNE_TRACEBACK=1 also where it arose."""
    if error is not None and os.environ.get("HVDTUNE_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    print(f"{program}: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
