"""`hvdtune config`: every setting, its value, its unit and where the value comes from."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from hvdtune.settings import variables
from hvdtune.settings.knobs import KNOBS, Knob, size_words, to_text

if TYPE_CHECKING:
    from hvdtune.launch.settings import Choice

HELP = "show every setting: its value, unit, source, and whether it is fixed for the autotuner"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--config-file", metavar="FILE", help="read settings from this file too")


def run(args: argparse.Namespace) -> int:
    """Print the settings that a job started here would have."""
    from hvdtune.launch.settings import choose

    config = None
    if args.config_file:
        from hvdtune.launch.config_file import read_config_file
        from hvdtune.launch.elastic import options

        config = read_config_file(args.config_file)
        options.read_section(config)  # elastic options have no default and no row
    choice = choose({}, config, os.environ)
    rows = [_row(knob, choice) for knob in KNOBS.values() if not knob.internal]
    print(json.dumps(rows, indent=2) if args.json else _table(rows))
    for notice in [*choice.notices, *variables.remarks(os.environ, building=True)]:
        print(f"hvdtune config: {notice}", file=sys.stderr)
    return 0


def _row(knob: Knob, choice: Choice) -> dict[str, Any]:
    value = choice.values[knob.key]
    if knob.kind == "assignments":
        value = to_text(knob, value)
    source = choice.sources.get(knob.key) or choice.starts.get(knob.key, "default")
    return {
        "setting": knob.key,
        "value": list(value) if isinstance(value, tuple) else value,
        "unit": knob.unit,
        "source": source,
        "tunable": knob.tunable,
        "fixed": knob.tunable and knob.key in choice.sources,
        "variable": knob.env,
        "flag": knob.flags[0] if knob.flags else None,
        "yaml": knob.yaml,
        "no_effect_because": knob.inert or None,
        "help": knob.help,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("setting", "value", "unit", "autotuner", "source", "variable")
    cells = [head]
    for row in rows:
        cells.append(
            (
                row["setting"],
                _value_words(row),
                row["unit"],
                _autotuner_words(row),
                row["source"] + (" (no effect here)" if row["no_effect_because"] else ""),
                row["variable"],
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join(lines)


def _autotuner_words(row: dict[str, Any]) -> str:
    if not row["tunable"]:
        return ""
    if row["fixed"]:
        return "fixed"
    if KNOBS[row["setting"]].between_hosts:
        return "may move it on several hosts"
    if KNOBS[row["setting"]].tuned_offline:
        return "hvdtune tune may move it"
    return "may move it on GPUs" if KNOBS[row["setting"]].on_gpus else "may move it"


def _value_words(row: dict[str, Any]) -> str:
    value = row["value"]
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if value == 0 and KNOBS[row["setting"]].zero_is_auto:
        return "0 (automatic)"
    if row["unit"] == "bytes" and value:
        words = size_words(value)
        return str(value) if words.endswith(" B") else f"{value} ({words})"
    return f"{value:g}" if isinstance(value, float) else str(value)
