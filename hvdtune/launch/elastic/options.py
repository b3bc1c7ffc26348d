"""The options of elastic jobs: flags of `hvdtune run`, the section of a config file, arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hvdtune.launch.errors import LaunchError
from hvdtune.settings.knobs import KnobError

if TYPE_CHECKING:
    from hvdtune.launch.config_file import ConfigFile
    from hvdtune.launch.elastic.limits import Limits

SECTION = "elastic"
_BEAT_SECONDS = 2.0  # the shortest heartbeat: each process sends one message per second


class Options(NamedTuple):
    """The user's choices; None and 0 if not given.

    `spares` are processes kept ready beyond `max_np`. `slots` is for hosts that the script prints
    without any. `replace_stragglers`: seconds of the steps in which a process holds the others up.
    """

    min_np: int | None = None
    max_np: int | None = None
    slots: int | None = None
    reset_limit: int | None = None
    cooldown: tuple[int, int] | None = None
    script: str | None = None
    health_check: str | None = None
    spares: int = 0
    replace_failed: bool = False
    replace_stragglers: int | None = None

    @property
    def is_elastic(self) -> bool:
        """Whether the job is elastic."""
        return self.min_np is not None or self.script is not None


class _Option(NamedTuple):
    """One option: its field, its flags, the parser of its values, the rest for --help."""

    field: str
    flags: tuple[str, ...]
    parse: Callable[[Any], Any]
    metavar: str | tuple[str, str] | None
    help: str


def _whole(least: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        text = str(value)
        if isinstance(value, bool) or not (
            text.isascii() and text.isdigit() and int(text) >= least
        ):
            raise ValueError(f"{value!r} is not accepted: give a whole number, {least} or more")
        return int(text)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not accepted: give a command")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not accepted: give true or false")
    return value


def _range(value: Any) -> tuple[int, int]:
    from hvdtune.launch.elastic.exclusion import Exclusion

    whole = _whole(0)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{value!r} is not accepted: give two numbers of seconds")
    try:
        low, high = map(whole, value)
        Exclusion((low, high))
    except ValueError as error:
        words = str(error).removeprefix("--blacklist-cooldown-range ").rstrip(".")
        raise ValueError(words) from None
    return low, high


OPTIONS = (
    _Option(
        "min_np", ("--min-np", "--min-num-proc"), _whole(1), "N",
        "fewest processes: with fewer slots the job waits for more (default: -np)",
    ),
    _Option(
        "max_np", ("--max-np", "--max-num-proc"), _whole(1), "N",
        "most processes (default: as many as there are slots)",
    ),
    _Option(
        "script", ("--host-discovery-script",), _text, "COMMAND",
        "a command for the shell that prints the available hosts, one HOST:SLOTS per line; it "
        "is run every second",
    ),
    _Option(
        "slots", ("--slots-per-host", "--slots"), _whole(1), "N",
        "slots of hosts that the script prints without any (default: 1)",
    ),
    _Option(
        "reset_limit", ("--reset-limit",), _whole(0), "N",
        "end the job if its processes would have to come together anew more often than this",
    ),
    _Option(
        "cooldown", ("--blacklist-cooldown-range",), _range, ("MIN", "MAX"),
        "seconds for which a host gets no new processes after one failed there, longer each time "
        "(default: for ever)",
    ),
    _Option(
        "replace_failed", ("--replace-failed",), _switch, None,
        "after a failure replace only the failed process instead of excluding its host",
    ),
    _Option(
        "replace_stragglers", ("--replace-stragglers",), _whole(1), "SECONDS",
        "end a process that has held the others up in steps that together took this long, and "
        "replace it like a failed one (default: never)",
    ),
    _Option(
        "spares", ("--spares",), _whole(0), "N",
        "processes beyond --max-np that are kept ready to replace failed ones",
    ),
    _Option(
        "health_check", ("--health-check-script",), _text, "COMMAND",
        "run COMMAND on a host before it gets processes; it gets none if COMMAND fails",
    ),
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the flags, in their own group.

    The values given are in the namespace's `elastic`: {field: (flag, value)}.
    """
    parser.set_defaults(elastic={})
    group = parser.add_argument_group(
        "elastic jobs",
        "With --min-np or --host-discovery-script a job is elastic: when processes or hosts are "
        "lost, the others train on, and new ones join them.",
    )
    for option in OPTIONS:
        group.add_argument(
            *option.flags, action=_Flag, option=option, metavar=option.metavar,
            nargs=_words(option), help=option.help,
        )  # fmt: skip
    return group


def _words(option: _Option) -> int | None:
    if option.metavar is None:
        return 0
    return 2 if isinstance(option.metavar, tuple) else None


class _Flag(argparse.Action):
    def __init__(self, option_strings: Any, dest: str, option: _Option, **kwargs: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, **kwargs)
        self.option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        flag = option_string or self.option_strings[0]
        try:
            value = self.option.parse(True if self.nargs == 0 else values)
        except ValueError as error:
            parser.error(f"argument {flag}: {error}")
        namespace.elastic = {**namespace.elastic, self.option.field: (flag, value)}


def read_section(config: ConfigFile) -> dict[str, tuple[str, Any]]:
    """Take the options out of a config file: {field: (name for the user, value)}.

    Keys are the flags' names. Raises `KnobError` for a value that is not accepted.
    """
    found: dict[str, tuple[str, Any]] = {}
    for option in OPTIONS:
        for flag in option.flags:
            key = f"{SECTION}.{flag.lstrip('-').replace('-', '_')}"
            config.known.add(key)
            value = config.others.pop(key, None)
            if value is None:
                continue
            try:
                found[option.field] = f"{config.path}: {key}", option.parse(value)
            except ValueError as error:
                raise KnobError(f"{key} in {config.path}: {error}.") from None
    return found


# The names of the same options on the command line and in `hvdtune.run`, in order of replacement.
_ARGUMENTS = {
    "min_num_proc": ("min_np", "--min-np"),
    "max_num_proc": ("max_np", "--max-np"),
    "slots": ("slots", "--slots-per-host"),
    "reset_limit": ("reset_limit", "--reset-limit"),
    "cooldown_range": ("cooldown", "--blacklist-cooldown-range"),
    "host_discovery_script": ("script", "--host-discovery-script"),
    "num_proc": ("", "-np"),
}


def from_arguments(**arguments: Any) -> dict[str, tuple[str, Any]]:
    """The options given to `hvdtune.run`: {field: (name, value)}. Raises `LaunchError`."""
    parsers = {option.field: option.parse for option in OPTIONS}
    found = {}
    for name, value in arguments.items():
        field = _ARGUMENTS[name][0]
        if value is not None:
            try:
                found[field] = name, parsers[field](value)
            except ValueError as error:
                raise LaunchError(f"{name}={error}.") from None
    return found


def in_arguments(sentence: str) -> str:
    """A sentence about flags, rewritten with the names that `hvdtune.run` has for them."""
    for name, (_, flag) in _ARGUMENTS.items():
        sentence = sentence.replace(flag, name)
    return sentence


def settle(given: Mapping[str, tuple[str, Any]]) -> tuple[Options, list[str]]:
    """The options, from {field: (name for the user, value)}, and sentences to tell the user.

    Raises `LaunchError` if there is a maximum but nothing that makes the job elastic.
    """
    options = Options(**{field: value for field, (_, value) in given.items()})
    if options.is_elastic:
        if options.slots is None or options.script is not None:
            return options, []
        return options, [f"{given['slots'][0]} has no effect: no script prints the hosts."]
    if options.max_np is not None:
        raise LaunchError(
            f"{given['max_np'][0]} is for elastic jobs: also give --min-np or "
            "--host-discovery-script."
        )
    return Options(), [
        f"{name} has no effect: neither --min-np nor --host-discovery-script makes the job elastic."
        for name, value in given.values()
        if value
    ]


def limits(
    options: Options, processes: int, elastic_timeout: float, start_timeout: float
) -> Limits:
    """The limits of the job; raises `LaunchError` if they contradict each other."""
    from hvdtune.launch.elastic.limits import Limits

    result = Limits(
        processes=processes,
        least=options.min_np or processes,
        most=options.max_np,
        resets=options.reset_limit,
        elastic_timeout=elastic_timeout,
        start_timeout=start_timeout,
        spares=options.spares,
        replaces_failed=options.replace_failed,
        straggler_seconds=options.replace_stragglers,
    )
    result.check()
    return result


def check_heartbeat(seconds: float) -> None:
    """Raise `KnobError` for a heartbeat that is too short for the processes."""
    if 0 < seconds < _BEAT_SECONDS:
        raise KnobError(
            f"HVDTUNE_ELASTIC_HEARTBEAT is {seconds:g}, which is not accepted: give "
            f"{_BEAT_SECONDS:g} or more, as processes report once a second, or 0."
        )
