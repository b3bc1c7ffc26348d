"""`hvdtune autotune`: the findings of earlier runs, and a page about one run's log."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from hvdtune.settings.knobs import KNOBS, KnobError, parse

if TYPE_CHECKING:
    from hvdtune.autotune.memory.store import Profile, Store

HELP = "show, export or forget what the autotuner has found; make a report of its log"
FORMATS = ("flags", "env", "yaml")
_KEY = "KEY"
EPILOG = """\
examples:
  hvdtune autotune list [--json]
  hvdtune autotune show 8c12
  hvdtune autotune export 8c12 --format flags      # or env, yaml
  hvdtune autotune export --nccl-tuner tuner.csv ring-ll.json tree-simple.json
  hvdtune autotune forget 8c12                     # or --all
  hvdtune autotune report log.csv -o report.html

The store is HVDTUNE_AUTOTUNE_STORE, or else hvdtune/autotune.json in the user's cache folder;
--autotune-store FILE names another one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "list the stored profiles, the newest last"
    command = commands.add_parser("list", help=about, description=about)
    _add_store(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    about = "show one profile in full"
    command = commands.add_parser("show", help=about, description=about)
    _add_store(command, key=True)
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    about = "print a profile's settings so that a job can be started with them"
    command = commands.add_parser("export", help=about, description=about)
    _add_store(command)
    command.add_argument(
        "keys",
        metavar=f"{_KEY}|MEASUREMENT",
        nargs="+",
        help="key of a profile, or its beginning (see: hvdtune autotune list); with --nccl-tuner, "
        "files of hvdtune bench --device cuda --json",
    )
    command.add_argument(
        "--nccl-tuner",
        metavar="FILE",
        help="write the fastest of the measured algorithms, protocols and channels by size as the "
        "CSV that NCCL's example tuner plugin reads",
    )
    command.add_argument(
        "--format",
        choices=FORMATS,
        default="env",
        help="flags of hvdtune run, variables for a shell (the default), or YAML for --config-file",
    )
    about = "forget profiles; the next run of such a job searches again"
    command = commands.add_parser("forget", help=about, description=about)
    _add_store(command, key=True, optional=True)
    command.add_argument("--all", action="store_true", help="forget every profile")
    about = "make a page of a log, hvdtune's or Horovod's: one HTML file that needs no network"
    command = commands.add_parser("report", help=about, description=about)
    command.add_argument("log", metavar="LOG", help="the CSV file of --autotune-log-file")
    command.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: LOG with the ending .html)"
    )


def run(args: argparse.Namespace) -> int:
    """Carry it out; return 0, 1 if the store cannot be used, 2 if a key does not exist."""
    from hvdtune.autotune.memory.store import StoreError

    try:
        return _COMMANDS[args.command](args)
    except StoreError as error:
        print(f"hvdtune autotune {args.command}: {error}.", file=sys.stderr)
        return 1


def _list(args: argparse.Namespace) -> int:
    from hvdtune.autotune.report.words import changes

    store = _store(args)
    profiles = store.read()
    if args.json:
        print(json.dumps({key: asdict(one) for key, one in profiles.items()}, indent=2))
        return 0
    if not profiles:
        print(f"nothing is remembered in {store.path}")
        return 0
    rows = [("key", "when (UTC)", "program", "ranks", "step", "gain", "settings")]
    for key, one in profiles.items():
        rows.append(
            (
                key,
                one.when.replace("T", " ")[:16],
                one.program or "-",
                str(_topology(one).get("ranks", "-")),
                f"{one.step_time_ms:.4g} ms" if one.step_time_ms is not None else "-",
                _gain(one) if one.is_change else "none",
                changes(one.start, one.values) or "as at the start",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0


def _show(args: argparse.Namespace) -> int:
    from hvdtune.autotune.report.words import value_words

    key, one = _chosen(_store(args), args.key)
    if args.json:
        print(json.dumps({"key": key, **asdict(one)}, indent=2))
        return 0
    print(f"{key}: {one.verdict}")
    print(f"  found     {one.when}" + (f" for {one.program}" if one.program else ""))
    print(f"  cost      {one.steps} steps, {one.seconds:.1f} s")
    if one.step_time_ms is not None:
        print(f"  step      {one.step_time_ms:.4g} ms")
    print("  settings")
    for name, value in one.values.items():
        begun = one.start.get(name, value)
        was = "" if begun == value else f" (was {value_words(name, begun)})"
        print(f"    {KNOBS[name].env} = {value_words(name, value)}{was}")
    print("  for jobs with")
    for topic, content in one.identity.items():
        print(f"    {topic}: {_words(content)}")
    return 0


def _export(args: argparse.Namespace) -> int:
    import shlex

    from hvdtune.autotune.report import words as account

    if args.nccl_tuner is not None:
        from hvdtune.autotune import nccl_tuner

        print(nccl_tuner.export(args.keys, args.nccl_tuner))
        return 0
    if len(args.keys) > 1:
        raise ValueError("give the key of one profile (several files: with --nccl-tuner FILE).")
    _, one = _chosen(_store(args), args.keys[0])
    environment = account.as_environment(one.values)
    if args.format == "env":
        print("\n".join(f"export {name}={shlex.quote(text)}" for name, text in environment.items()))
        return 0
    print(
        shlex.join(account.as_flags(one.values))
        if args.format == "flags"
        else account.as_yaml(one.values)
    )
    left = account.without_way(one.values, args.format)
    if left:
        words = " ".join(f"{KNOBS[name].env}={environment[KNOBS[name].env]}" for name in left)
        print(f"hvdtune autotune export: set these as variables: {words}", file=sys.stderr)
    return 0


def _forget(args: argparse.Namespace) -> int:
    store = _store(args)
    if args.all == (args.key is not None):
        raise ValueError("give the key of a profile, or --all.")
    if args.all:
        gone = store.forget(lambda key: True)
    else:
        wanted, _ = _chosen(store, args.key)
        gone = store.forget(lambda key: key == wanted)
    print(f"forgot {len(gone)} profile{'' if len(gone) == 1 else 's'} of {store.path}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from hvdtune.autotune.report import page

    target = args.output or os.path.splitext(args.log)[0] + ".html"
    if os.path.exists(target) and os.path.samefile(args.log, target):
        raise ValueError(f"--output {target} is the log itself: give another file.")
    told = page.write(args.log, target)
    print(f"{target}: {told}")
    return 0


_COMMANDS = {
    "list": _list,
    "show": _show,
    "export": _export,
    "forget": _forget,
    "report": _report,
}


def _add_store(parser: argparse.ArgumentParser, key: bool = False, optional: bool = False) -> None:
    if key:
        parser.add_argument(
            "key",
            metavar=_KEY,
            nargs="?" if optional else None,
            help="key of a profile, or its beginning (see: hvdtune autotune list)",
        )
    parser.add_argument(
        "--autotune-store",
        dest="store",
        metavar="FILE",
        help="the store (default: HVDTUNE_AUTOTUNE_STORE, or else the user's cache folder)",
    )


def _store(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Store:
    from hvdtune.autotune.memory.store import StoreError, open_store

    knob = KNOBS["autotune_store"]
    setting = args.store
    if setting is None and knob.env in environ:
        setting = parse(knob, environ[knob.env], knob.env)
    store = open_store(setting)
    if store is None:
        given = "--autotune-store" if args.store is not None else knob.env
        raise StoreError(f"{given} is empty, so nothing is remembered; name a file")
    return store


def _chosen(store: Store, prefix: str) -> tuple[str, Profile]:
    """The profile whose key begins with `prefix`. Raises KnobError if there is not exactly one."""
    profiles = store.read()
    keys = [key for key in profiles if key.startswith(prefix)] if prefix else []
    if len(keys) != 1:
        what = f"{len(keys)} profiles have a key that begins" if keys else "no profile's key begins"
        raise KnobError(f"{what} with {prefix!r} in {store.path}; see: hvdtune autotune list")
    return keys[0], profiles[keys[0]]


def _topology(one: Profile) -> Mapping[str, object]:
    topology = one.identity.get("topology")
    return topology if isinstance(topology, dict) else {}


def _gain(one: Profile) -> str:
    if one.gain is None or one.margin is None:
        return "-"
    return f"{100 * one.gain:.1f} ± {100 * one.margin:.1f} %"


def _words(content: object) -> str:
    if isinstance(content, dict):
        return ", ".join(f"{name} {value}" for name, value in content.items()) or "none"
    if isinstance(content, list):
        return ", ".join(map(str, content)) or "none"
    return str(content)
