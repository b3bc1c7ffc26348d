"""`hvdtune diff`: two recorded runs of one workload compared."""

from __future__ import annotations

import argparse
import json

from hvdtune.cli._files import check_recordings

HELP = "compare two recorded runs: which is faster, how surely, and why"

EPILOG = """\
example:
  hvdtune run -np 4 --timeline-filename before.json python train.py
  hvdtune run -np 4 --timeline-filename after.json --cycle-time-ms 2 python train.py
  hvdtune diff before.json after.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("a", metavar="A", help="recording of one run: rank 0's file")
    parser.add_argument("b", metavar="B", help="recording of the other run")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument(
        "--force", action="store_true", help="compare runs even if their tensors differ"
    )


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 0."""
    from hvdtune.timeline import api
    from hvdtune.timeline.analysis.analyse import analyse
    from hvdtune.timeline.report import comparison, comparison_text

    check_recordings([args.a, args.b])
    runs = [analyse(api.open_recording([path])) for path in (args.a, args.b)]
    numbers = comparison.compare(*runs, force=args.force)
    if args.json:
        print(json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        print(comparison_text.text(numbers))
    return 0
